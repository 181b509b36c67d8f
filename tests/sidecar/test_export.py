"""Export by OTLP, to real servers: what they get is what the file has."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_cache.errors import UsageError
from otel_cache.records import Batch
from otel_cache.sidecar.build import Processes
from otel_cache.sidecar.export import ExportQueue, make_exporter, wants_export

from .support import SPANS, Peer, hello, parse_lines, read_lines, read_requests, wait_until, whole_request


class Collector(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.metadata: dict[str, str] = {}
        self.endpoint = ""

    def Export(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        self.requests.append(request)
        return ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[Collector]:
    service = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(service, server)
    service.endpoint = f"http://localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    yield service
    server.stop(None)


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    service = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            service.metadata = {"path": self.path, **{key.lower(): value for key, value in self.headers.items()}}
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    service.endpoint = f"http://localhost:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield service
    server.shutdown()
    server.server_close()


def key(span):
    return span.span_id


def test_grpc_gets_what_the_file_has(start, socket_path, tmp_path, collector, capfd):
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()

    written = sorted(read_lines(out), key=key)
    assert sorted(read_requests(collector.requests), key=key) == written
    assert written[0].resource["telemetry.sdk.name"] == "opentelemetry"
    assert f"{SPANS} spans exported to {collector.endpoint}" in capfd.readouterr().err


def test_the_file_s_form_is_that_of_the_exporter(start, socket_path, tmp_path, collector):
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()

    (line,) = parse_lines(out)
    (request,) = collector.requests
    assert line == request


def test_http_gets_what_the_file_has(start, socket_path, tmp_path, http_collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http_collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()

    assert sorted(read_requests(http_collector.requests), key=key) == sorted(read_lines(out), key=key)
    assert http_collector.metadata["path"] == "/v1/traces"
    assert http_collector.metadata["authorization"] == "secret"


def test_a_named_http_endpoint_gets_the_path(start, socket_path, http_collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    sidecar = start(endpoint=http_collector.endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()

    assert http_collector.metadata["path"] == "/v1/traces"
    assert len(read_requests(http_collector.requests)) == SPANS


def test_the_exporter_s_variables_count(start, socket_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "tenant=blue")
    sidecar = start()
    Peer(socket_path, hello()).send(*whole_request())
    wait_until(lambda: collector.requests)
    sidecar.stop()

    assert collector.metadata["tenant"] == "blue"


def test_when_spans_are_exported(monkeypatch):
    assert wants_export(None, None)
    assert not wants_export(None, "out.jsonl")
    assert wants_export("localhost:4317", "out.jsonl")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317")
    assert wants_export(None, "out.jsonl")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert not wants_export(None, "out.jsonl")


def test_an_unknown_protocol_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(UsageError, match="http/json"):
        make_exporter(None)


class Stuck(SpanExporter):
    """An exporter whose collector does not answer until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.free = threading.Event()
        self.taken = 0

    def export(self, spans: list[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.free.wait(30)
        self.taken += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.free.set()


def spans_of_a_request():
    return Processes().get(hello()).add(Batch(0, whole_request()))


def test_a_slow_collector_costs_spans_but_no_time():
    exporter = Stuck()
    queue = ExportQueue(exporter, spans=20)
    queue.put(spans_of_a_request())
    assert exporter.entered.wait(10)
    for _ in range(3):
        queue.put(spans_of_a_request())
    assert queue.lost == 4 * SPANS - 29
    exporter.free.set()
    queue.close()

    assert (queue.exported, queue.lost, exporter.taken) == (29, 4 * SPANS - 29, 29)


def test_a_close_waits_only_so_long():
    exporter = Stuck()
    queue = ExportQueue(exporter)
    queue.put(spans_of_a_request())
    assert exporter.entered.wait(10)
    queue.put(spans_of_a_request())
    queue.close(seconds=0.1)

    assert queue.exported + queue.lost == 2 * SPANS
    assert queue.lost >= SPANS


class Flaky(Stuck):
    """An exporter whose collector is away at first."""

    def export(self, spans: list[ReadableSpan]) -> SpanExportResult:
        self.taken += 1
        return SpanExportResult.FAILURE if self.taken == 1 else SpanExportResult.SUCCESS


def test_a_batch_is_tried_again():
    queue = ExportQueue(Flaky())
    queue.put(spans_of_a_request())
    wait_until(lambda: queue.exported)
    queue.close()

    assert (queue.exported, queue.lost) == (SPANS, 0)
