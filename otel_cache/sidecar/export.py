"""Export by OTLP, in a thread of its own behind a bounded queue: a slow collector never holds up the evidence."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_cache.errors import UsageError
from otel_cache.sidecar.spans import SpanData, to_readable

_logger = logging.getLogger(__name__)

TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP_PATH = "/v1/traces"

QUEUE_SPANS = 65_536
QUEUE_BYTES = 128 << 20
BATCH_SPANS = 512
BATCH_BYTES = 2 << 20
"""Collectors take 4 MiB in a gRPC message; estimates err."""
BATCH_SECONDS = 1.0
RETRY_SECONDS = 60.0
"""How long a batch is tried again, beyond the exporter's own retries, before it is given up."""
CLOSE_SECONDS = 10.0
_SPAN_BYTES = 600


def wants_export(endpoint: str | None, out: str | None) -> bool:
    """Return whether spans are to be exported: an endpoint is named somewhere, or there is no file either."""
    if endpoint:
        return True
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(os.environ.get(TRACES_ENDPOINT) or os.environ.get(ENDPOINT) or not out)


def make_exporter(endpoint: str | None) -> tuple[SpanExporter, str]:
    """Return the standard exporter that the environment asks for, and where it exports to.

    All `OTEL_EXPORTER_OTLP_*` variables count, since the exporters read them; `endpoint` wins over theirs.

    Raises:
        UsageError: the protocol is not known, or a variable has an impossible value.

    """
    protocol = (os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL) or "grpc").strip().lower()
    named = endpoint or os.environ.get(TRACES_ENDPOINT) or os.environ.get(ENDPOINT)
    if endpoint is not None:
        endpoint = _checked(endpoint)
    exporter: SpanExporter
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            exporter = Grpc(endpoint=endpoint)
        elif protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

            if endpoint and endpoint.rstrip("/").count("/") == 2:
                endpoint = endpoint.rstrip("/") + HTTP_PATH
            exporter = Http(endpoint=endpoint)
        else:
            raise UsageError(f"{PROTOCOL}={protocol}: only grpc and http/protobuf can be exported to")
    except (ValueError, OSError) as error:
        raise UsageError(f"the OTLP exporter cannot be set up: {error}") from error
    return exporter, named or ("localhost:4317" if protocol == "grpc" else "localhost:4318")


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


class ExportQueue:
    """Hands spans to an exporter in batches.

    Attributes:
        exported: spans that the collector took.
        lost: spans that found no room, or that the collector did not take.

    """

    def __init__(self, exporter: SpanExporter, *, spans: int = QUEUE_SPANS, size: int = QUEUE_BYTES) -> None:
        """Start the thread; at most `spans` spans, of about `size` bytes, wait for it."""
        self.exported = 0
        self.lost = 0
        self._exporter = exporter
        self._max_spans = spans
        self._max_bytes = size
        self._queue: deque[tuple[SpanData, int]] = deque()
        self._bytes = 0
        self._condition = threading.Condition()
        self._deadline: float | None = None
        self._full = False
        self._thread = threading.Thread(target=self._run, name="otel-cache-export", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[SpanData]) -> None:
        """Queue `spans`; those that find no room are counted, and that is logged once."""
        with self._condition:
            for span in spans:
                size = _estimate(span)
                if len(self._queue) >= self._max_spans or self._bytes + size > self._max_bytes:
                    self.lost += 1
                    self._warn_full()
                    continue
                self._queue.append((span, size))
                self._bytes += size
            if len(self._queue) >= BATCH_SPANS or self._bytes >= BATCH_BYTES:
                self._condition.notify_all()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Export what is queued within `seconds`; what is left then is counted as lost."""
        with self._condition:
            self._deadline = time.monotonic() + seconds
            self._condition.notify_all()
        self._thread.join(seconds)
        with _quiet():
            self._exporter.shutdown()
        # The shutdown ends an export that is under way; the thread then counts what it held.
        self._thread.join(1.0)
        with self._condition:
            self.lost += len(self._queue)
            self._queue.clear()

    def _run(self) -> None:
        while batch := self._next():
            spans = [to_readable(span) for span in batch]
            if self._export(spans):
                self.exported += len(spans)
            else:
                self.lost += len(spans)

    def _next(self) -> list[SpanData]:
        """Return the next batch, without a span when all is done."""
        with self._condition:
            if self._deadline is None and len(self._queue) < BATCH_SPANS and self._bytes < BATCH_BYTES:
                self._condition.wait(BATCH_SECONDS)
            while not self._queue and self._deadline is None:
                self._condition.wait(BATCH_SECONDS)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return []
            batch: list[SpanData] = []
            size = 0
            while self._queue and len(batch) < BATCH_SPANS and (not batch or size + self._queue[0][1] <= BATCH_BYTES):
                span, estimate = self._queue.popleft()
                batch.append(span)
                size += estimate
            self._bytes -= size
            return batch

    def _export(self, spans: Sequence[ReadableSpan]) -> bool:
        give_up = time.monotonic() + RETRY_SECONDS
        pause = 1.0
        while True:
            try:
                if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                    return True
            except Exception:
                _logger.exception("a batch of spans could not be exported")
                return False
            with self._condition:
                # A close that is under way is the last try's end: the collector is not there.
                if self._deadline is None:
                    self._condition.wait(pause)
                limit = give_up if self._deadline is None else min(give_up, self._deadline)
            if time.monotonic() + pause >= limit:
                return False
            pause = min(pause * 2, 15.0)

    def _warn_full(self) -> None:
        if not self._full:
            self._full = True
            _logger.warning("the collector is too slow or away: spans are dropped from its queue, and counted")


def _estimate(span: SpanData) -> int:
    size = _SPAN_BYTES
    for value in span.attributes.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Sequence):
            size += sum(len(each) + 4 if isinstance(each, str) else 10 for each in value)
    return size + 40 * len(span.links)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep an exporter's complaint about its own shutdown from the user."""
    logger = logging.getLogger("opentelemetry")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
