"""An OTLP receiver over gRPC, for the sidecar of the server under probe: it keeps spans as lines of OTLP JSON."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from otel_cache.errors import UsageError

IDS = ("traceId", "spanId", "parentSpanId")
MAX_BYTES = 64 << 20
STOP_SECONDS = 2.0


class Receiver(TraceServiceServicer):
    """Listens on `port` of all addresses and appends what comes to the file `path`."""

    def __init__(self, port: int, path: Path) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            UsageError: the port is taken, or not this user's to take.

        """
        self._path = path
        # Without this gRPC shares a port that another process listens on, and gets half of its spans.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_BYTES)]
        self._server = grpc.server(ThreadPoolExecutor(1), options=options)
        add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        try:
            self.port = self._server.add_insecure_port(f"[::]:{port}")
        except RuntimeError as error:
            raise UsageError(f"--otlp-port {port}: cannot be listened on; is it taken? 0 takes a free one") from error
        self._server.start()

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        """Take a batch."""
        line = json.dumps(_with_hex_ids(MessageToDict(request, use_integers_for_enums=True)))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        return ExportTraceServiceResponse()

    def close(self) -> None:
        """Stop listening, once what is under way was taken."""
        self._server.stop(STOP_SECONDS).wait()


def _with_hex_ids(value: Any) -> Any:
    """Return a message with the ids of spans in hex, as OTLP's JSON has them."""
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    if isinstance(value, dict):
        return {key: base64.b64decode(each).hex() if key in IDS else _with_hex_ids(each) for key, each in value.items()}
    return value
