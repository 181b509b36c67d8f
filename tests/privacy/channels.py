"""Records every byte that goes out: between vLLM's process and the sidecar, and from the sidecar to a collector."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse


class Proxy:
    """A Unix socket that passes everything on to another one, both ways, and keeps what vLLM's process sent."""

    def __init__(self, path: str, target: str) -> None:
        """Listen on `path`, for `target`."""
        self.sent = bytearray()
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.connect(self._target)
            self._spawn(self._pass_on, near, far, self.sent)
            self._spawn(self._pass_on, far, near, bytearray())

    def _pass_on(self, source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
        # Either side may be gone before the other has said its last.
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


class RawCollector:
    """An OTLP gRPC server that keeps the bytes of each request, and its headers."""

    def __init__(self) -> None:
        """Choose a port; nothing listens there yet."""
        self.received = bytearray()
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            self.port = probe.getsockname()[1]
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Listen."""
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
        assert self._server.add_insecure_port(f"localhost:{self.port}") == self.port
        self._server.start()

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.received += request + repr(context.invocation_metadata()).encode()
        return ExportTraceServiceResponse().SerializeToString()

    def stop(self) -> None:
        """Go away."""
        if self._server is not None:
            self._server.stop(5).wait()
