"""OpenTelemetry's own exporters, made to take requests that are encoded already.

Connection, TLS, headers, timeouts, compression and retries are theirs, and so are all `OTEL_EXPORTER_OTLP_*`
variables. What is added: bytes go out as they are, what the collector says of them is heard, and whether a failure is
for good.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from otel_cache.errors import UsageError

TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP_PATH = "/v1/traces"
_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_RETRY_INFO = "google.rpc.retryinfo-bin"
_GRPC_TRANSIENT = frozenset(
    ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"],
)
_HTTP_TRANSIENT = frozenset([429, 502, 503, 504])
MAX_ANSWER_BYTES = 1 << 16
"""Of an answer's body, as much is read as this."""
ANSWER_SECONDS = 10.0
"""How long an answer's body may take, once its status has come."""


class Outcome(Enum):
    """What became of a batch: taken, refused for good, or to be tried again later."""

    SENT = "sent"
    REFUSED = "refused"
    AWAY = "away"


class Answer(NamedTuple):
    """The collector's answer: `rejected` spans of a batch that was taken were not; `error` says why one was not."""

    outcome: Outcome
    rejected: int = 0
    error: str = ""


class Exporter(Protocol):
    """Sends encoded requests."""

    def send(self, data: bytes, spans: int) -> Answer:
        """Send an ExportTraceServiceRequest that has `spans` spans, with the exporter's own retries."""

    def shutdown(self) -> None:
        """End what is under way, and close."""


def wants_export(endpoint: str | None, out: str | None) -> bool:
    """Return whether spans are to be exported: an endpoint is named somewhere, or there is no file either."""
    if endpoint:
        return True
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(os.environ.get(TRACES_ENDPOINT) or os.environ.get(ENDPOINT) or not out)


def exports_to(endpoint: str | None, out: str | None) -> str:
    """Return where a sidecar with these options exports to by the environment, empty for nowhere; makes no exporter."""
    return _named(endpoint) if wants_export(endpoint, out) else ""


def _named(endpoint: str | None) -> str:
    default = "localhost:4318" if _protocol() == "http/protobuf" else "localhost:4317"
    return endpoint or os.environ.get(TRACES_ENDPOINT) or os.environ.get(ENDPOINT) or default


def _protocol() -> str:
    return (os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL) or "grpc").strip().lower()


def make_exporter(endpoint: str | None) -> tuple[Exporter, str]:
    """Return the exporter that the environment asks for, and where it exports to.

    All `OTEL_EXPORTER_OTLP_*` variables count, since the exporters read them; `endpoint` wins over theirs.

    Raises:
        UsageError: the protocol is not known, or a variable has an impossible value.

    """
    protocol = _protocol()
    named = _named(endpoint)
    if endpoint is not None:
        endpoint = _checked(endpoint)
    try:
        if protocol == "grpc":
            return _make_grpc(endpoint), named
        if protocol == "http/protobuf":
            if endpoint and endpoint.rstrip("/").count("/") == 2:
                endpoint = endpoint.rstrip("/") + HTTP_PATH
            return _make_http(endpoint), named
    except (ValueError, OSError) as error:
        raise UsageError(f"the OTLP exporter cannot be set up: {error}") from error
    raise UsageError(f"{PROTOCOL}={protocol}: only grpc and http/protobuf can be exported to")


def _checked(endpoint: str) -> str:
    """Return `endpoint` with a scheme: `host:port` is one without TLS.

    Raises:
        UsageError: it names no host, or a scheme that OTLP does not have.

    """
    url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    try:
        named = bool(url.hostname) and (url.port is not None or "://" in endpoint)
    except ValueError:
        named = False
    if url.scheme not in ("http", "https") or not named:
        raise UsageError(f"endpoint {endpoint!r}: give http://HOST:PORT, https://HOST:PORT or HOST:PORT")
    return url.geturl()


class _Encoded(Sequence[Any]):
    """Encoded spans, as the exporters count them."""

    def __init__(self, data: bytes, spans: int) -> None:
        self.data = data
        self._spans = spans

    def __len__(self) -> int:
        return self._spans

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("the spans are encoded")


def _make_grpc(endpoint: str | None) -> Exporter:
    import grpc  # type: ignore[import-untyped]
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Stub:
        """The service's stub, without a serializer, and with an ear for what comes back."""

        def __init__(self, channel: Any, heard: Callable[[Any], None]) -> None:
            self._call = channel.unary_unary(_EXPORT, response_deserializer=ExportTraceServiceResponse.FromString)
            self._heard = heard

        def Export(self, request: bytes, **options: Any) -> Any:
            try:
                response = self._call(request, **options)
            except grpc.RpcError as error:
                self._heard(error)
                raise
            self._heard(response)
            return response

    class GrpcExporter(OTLPSpanExporter):
        heard: Any = None

        # The base class makes its client of this, whenever it connects anew.
        @property
        def _stub(self) -> Any:
            return lambda channel: Stub(channel, self._hear)

        @_stub.setter
        def _stub(self, stub: Any) -> None:
            """Take no other."""

        def _translate_data(self, data: Any) -> Any:
            return data.data

        def _hear(self, answer: Any) -> None:
            self.heard = answer

        def send(self, data: bytes, spans: int) -> Answer:
            self.heard = None
            result = self.export(_Encoded(data, spans))
            if result is SpanExportResult.SUCCESS:
                return _taken(self.heard, spans)
            if not isinstance(self.heard, grpc.RpcError):
                return Answer(Outcome.AWAY, error="the export was ended")
            return _grpc_failure(self.heard)

    return GrpcExporter(endpoint=endpoint)


def _taken(response: Any, spans: int) -> Answer:
    """Return what an ExportTraceServiceResponse to a request of `spans` spans says; None: nothing was heard."""
    partial = getattr(response, "partial_success", None)
    if partial is None:
        return Answer(Outcome.SENT)
    return Answer(Outcome.SENT, min(max(partial.rejected_spans, 0), spans), partial.error_message)


def _grpc_failure(error: Any) -> Answer:
    code = error.code().name
    # By OTLP's rule a server that is merely full says when to come back; otherwise the request itself is too much.
    full = code == "RESOURCE_EXHAUSTED" and any(key == _RETRY_INFO for key, _ in error.trailing_metadata() or ())
    transient = full or code in _GRPC_TRANSIENT
    return Answer(Outcome.AWAY if transient else Outcome.REFUSED, error=f"{code}: {error.details()}")


def _make_http(endpoint: str | None) -> Exporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    class HttpExporter(OTLPSpanExporter):
        _client: Any
        heard = b""
        moved = ""

        def send(self, data: bytes, spans: int) -> Answer:
            if self._shutdown:
                return Answer(Outcome.AWAY, error="the export was ended")
            self.heard, self.moved = b"", ""
            try:
                status, reason = self._post(data)
            except OSError as error:
                return Answer(Outcome.AWAY, error=str(error))
            if status is not None and 200 <= status < 300:
                return _taken(self._response(), spans)
            transient = status is None or status in _HTTP_TRANSIENT
            moved = f" (redirected to {self.moved}: give the endpoint that answers itself)" if self.moved else ""
            outcome = Outcome.AWAY if transient else Outcome.REFUSED
            return Answer(outcome, error=f"{status or 'no answer'}: {reason}{moved}")

        def _post(self, data: bytes) -> tuple[int | None, str]:
            if hasattr(self, "_client"):
                result = self._client.export(data)
                return result.status_code, str(result.reason or result.error or "")
            # Before version 1.42 of the exporter: one try, without its retries; ours follow.
            response = self._export(data)  # type: ignore[attr-defined]
            return response.status_code, str(response.reason)

        def hear(self, response: Any, **_: Any) -> None:
            """Take an answer's body, as far as it is of use, before the session reads all of it."""
            self.heard = response._content = _read_some(response.raw)
            response._content_consumed = True
            # A request that follows a redirection is a GET without the spans: whatever answers that has not got them.
            if 300 <= response.status_code < 400:
                self.moved = response.headers.pop("Location", "")

        def _response(self) -> Any:
            try:
                return ExportTraceServiceResponse.FromString(self.heard)
            except Exception:
                return None  # it has taken the request, and says nothing that is of OTLP

    exporter = HttpExporter(endpoint=endpoint)
    holder: Any = exporter._client._transport if hasattr(exporter, "_client") else exporter
    holder._session.hooks["response"].append(exporter.hear)
    return exporter


def _read_some(body: Any) -> bytes:
    """Return what came of an answer's body, at most `MAX_ANSWER_BYTES`; what more there is goes with its connection."""
    data = b""
    deadline = time.monotonic() + ANSWER_SECONDS
    read = getattr(body, "read1", body.read)
    # The status has been said: a body that breaks off, or is not what its headers say, changes nothing of it.
    with contextlib.suppress(Exception):
        while len(data) < MAX_ANSWER_BYTES and time.monotonic() < deadline:
            if not (more := read(MAX_ANSWER_BYTES - len(data), decode_content=True)):
                return data
            data += more
    body.close()
    return data
