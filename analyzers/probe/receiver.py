"""An OTLP receiver over gRPC, for the sidecar of the server under probe: it keeps what comes as messages in a file."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]

from otel_cache.errors import UsageError

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
TAKEN = b""
"""An empty answer: all spans were taken."""
LENGTH_BYTES = 4
MAX_BYTES = 64 << 20
STOP_SECONDS = 2.0


class Receiver:
    """Listens on `port` of all addresses and appends each export request to the file `path`, after its length."""

    def __init__(self, port: int, path: Path) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            UsageError: the port is taken, or not this user's to take.

        """
        self._path = path
        # Without this gRPC shares a port that another process listens on, and gets half of its spans.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_BYTES)]
        # One thread, so that messages stay whole in the file.
        self._server = grpc.server(ThreadPoolExecutor(1), options=options)
        # Bytes in and out: an export request reads like the messages that the collector's file exporter writes.
        export = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Export": export})])
        try:
            self.port: int = self._server.add_insecure_port(f"[::]:{port}")
        except RuntimeError as error:
            raise UsageError(f"--otlp-port {port}: cannot be listened on; is it taken? 0 takes a free one") from error
        self._server.start()

    def close(self) -> None:
        """Stop listening, once what is under way was taken."""
        self._server.stop(STOP_SECONDS).wait()

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._path.open("ab") as file:
            file.write(len(request).to_bytes(LENGTH_BYTES, "big") + request)
        return TAKEN
