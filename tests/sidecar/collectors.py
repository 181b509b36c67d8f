"""Real OTLP servers for tests: they keep what they are sent, and can be away, slow or unwilling."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from .support import Read, read_requests


class Collector(TraceServiceServicer):
    """An OTLP gRPC server.

    Attributes:
        requests: what it took, in order.
        tries: requests that reached it, whether it took them or not.
        refuse: status that it answers with instead; None: it takes what comes.
        rejected: spans that it says it has not taken of each request.
        delay: seconds before it answers.

    """

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.tries = 0
        self.metadata: dict[str, str] = {}
        self.refuse: Callable[[ExportTraceServiceRequest], grpc.StatusCode | None] = lambda request: None
        self.rejected = 0
        self.delay = 0.0
        self.port = 0
        self._server: grpc.Server | None = None

    @property
    def endpoint(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def spans(self) -> list[Read]:
        """All spans it took, in order."""
        return read_requests(list(self.requests))

    def start(self) -> None:
        """Listen: on a port of its own at first, on the same one later."""
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_TraceServiceServicer_to_server(self, self._server)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.port = self._server.add_insecure_port(f"localhost:{self.port}")
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._server.start()

    def stop(self) -> None:
        """Go away, once what is under way was answered."""
        if self._server is not None:
            self._server.stop(5).wait()
            self._server = None

    def Export(self, request, context):
        self.tries += 1
        self.metadata = dict(context.invocation_metadata())
        if self.delay:
            time.sleep(self.delay)
        if (code := self.refuse(request)) is not None:
            context.abort(code, "refused on purpose")
        self.requests.append(request)
        return ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(rejected_spans=self.rejected) if self.rejected else None
        )


class HttpCollector:
    """An OTLP/HTTP server.

    Attributes:
        requests: what it took, in order.
        tries: requests that reached it, whether it took them or not.
        clients: where they came from.
        status: what it answers.
        headers: further headers of its answers; with a `Content-Length` that is not theirs a body breaks off.
        answer: the body, in parts; without a length its end is that of the connection.

    """

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.metadata: dict[str, str] = {}
        self.tries = 0
        self.status = 200
        self.clients: set[tuple[str, int]] = set()
        self.headers: dict[str, str] = {}
        self.answer: Callable[[], Iterable[bytes]] = lambda: ()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            # Connections stay, as a collector's do.
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer who follows a redirection, and has left the spans behind."""
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                collector.tries += 1
                collector.clients.add(self.client_address)
                collector.metadata = {"path": self.path, **{key.lower(): value for key, value in self.headers.items()}}
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                for header in {"Content-Length": "0", **collector.headers}.items():
                    self.send_header(*header)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    for part in collector.answer():
                        self.wfile.write(part)
                        self.wfile.flush()
                if "Content-Length" in collector.headers:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.endpoint = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Go away."""
        self._server.shutdown()
        self._server.server_close()


def write_lines(requests: Sequence[ExportTraceServiceRequest], path: Path) -> None:
    """Write what a collector took as its file exporter does: a request in OTLP JSON per line."""
    with path.open("w") as file:
        for request in requests:
            file.write(json.dumps(_hex_ids(MessageToDict(request, use_integers_for_enums=True))) + "\n")


def _hex_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_hex_ids(each) for each in value]
    if isinstance(value, dict):
        ids = ("traceId", "spanId", "parentSpanId")
        return {key: base64.b64decode(each).hex() if key in ids else _hex_ids(each) for key, each in value.items()}
    return value
