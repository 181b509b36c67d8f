"""Export by OTLP, to real servers: what they get is what the file has."""

import gzip
import time

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from otel_cache.errors import UsageError
from otel_cache.semconv import names
from otel_cache.sidecar import export
from otel_cache.sidecar.__main__ import _Once
from otel_cache.sidecar.backlog import Backlog
from otel_cache.sidecar.export import ExportQueue
from otel_cache.sidecar.exporters import Answer, Outcome, make_exporter, wants_export
from otel_cache.sidecar.spool import Encoded, Spool

from .support import SPANS, Peer, hello, parse_lines, read_lines, read_requests, status_of, wait_until, whole_request


def key(span):
    return span.span_id


def test_grpc_gets_what_the_file_has(start, socket_path, tmp_path, collector, capfd):
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()

    written = sorted(read_lines(out), key=key)
    assert sorted(collector.spans, key=key) == written
    assert written[0].resource["telemetry.sdk.name"] == "opentelemetry"
    assert f"{SPANS} spans exported to {collector.endpoint}" in capfd.readouterr().err


def test_the_file_s_form_is_that_of_the_export(start, socket_path, tmp_path, collector):
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
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    sidecar = start()
    Peer(socket_path, hello()).send(*whole_request())
    wait_until(lambda: collector.requests)
    sidecar.stop()

    assert collector.metadata["tenant"] == "blue"
    assert len(collector.spans) == SPANS


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


GRPC_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: Outcome.REFUSED,
    grpc.StatusCode.UNAUTHENTICATED: Outcome.REFUSED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.REFUSED,
    grpc.StatusCode.UNAVAILABLE: Outcome.AWAY,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.AWAY,
}


@pytest.mark.parametrize("code", GRPC_CODES)
def test_what_a_grpc_status_means(collector, code, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    exporter, _ = make_exporter(collector.endpoint)
    collector.refuse = lambda request: code
    answer = exporter.send(b"", 3)
    collector.refuse = lambda request: None
    taken = exporter.send(b"", 3)
    exporter.shutdown()

    assert answer.outcome is GRPC_CODES[code]
    assert code.name in answer.error
    assert taken == (Outcome.SENT, 0, "")


HTTP_STATUSES = {
    **dict.fromkeys([201, 202, 204], Outcome.SENT),
    **dict.fromkeys([301, 302, 303, 304, 307, 308, 399], Outcome.REFUSED),
    **dict.fromkeys([400, 401, 404, 408, 413, 500, 501, 505], Outcome.REFUSED),
    **dict.fromkeys([429, 502, 503, 504], Outcome.AWAY),
}
"""As the section on failures of OTLP's specification has them."""


@pytest.mark.parametrize(("status", "outcome"), HTTP_STATUSES.items())
def test_what_an_http_status_means(http_collector, status, outcome, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exporter, _ = make_exporter(http_collector.endpoint)
    http_collector.status = status
    answer = exporter.send(b"", 3)
    http_collector.status = 200
    taken = exporter.send(b"", 3)
    exporter.shutdown()

    assert answer.outcome is outcome
    assert (str(status) in answer.error) == (outcome is not Outcome.SENT)
    assert taken.outcome is Outcome.SENT


@pytest.fixture
def http_exporter(http_collector, monkeypatch):
    """An exporter to `http_collector`."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    exporter, _ = make_exporter(http_collector.endpoint)
    yield exporter
    exporter.shutdown()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_who_redirects_has_not_got_the_spans(http_collector, http_exporter, status):
    http_collector.status = status
    http_collector.headers = {"Location": f"{http_collector.endpoint}/elsewhere"}
    answer = http_exporter.send(b"", 3)

    assert answer.outcome is Outcome.REFUSED
    assert f"{status}: " in answer.error
    assert f"redirected to {http_collector.endpoint}/elsewhere" in answer.error
    assert http_collector.tries == 1


def partial(rejected, message=""):
    """Return an answer that says how many spans were not taken."""
    success = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return ExportTraceServiceResponse(partial_success=success).SerializeToString()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"", (0, ""), id="nothing"),
        pytest.param(partial(2, "no room"), (2, "no room"), id="some"),
        pytest.param(partial(0, "slow down"), (0, "slow down"), id="a-warning"),
        pytest.param(partial(2**62), (3, ""), id="more-than-there-are"),
        pytest.param(partial(-1), (0, ""), id="less-than-none"),
        pytest.param(partial(2)[:-1], (0, ""), id="cut-short"),
        pytest.param(b"<html>OK</html>", (0, ""), id="no-answer-of-otlp"),
        pytest.param(b"{}", (0, ""), id="json"),
    ],
)
def test_what_an_http_server_says_of_what_it_took(http_collector, http_exporter, body, expected):
    http_collector.headers = {"Content-Length": str(len(body))}
    http_collector.answer = lambda: [body]

    assert http_exporter.send(b"", 3) == (Outcome.SENT, *expected)


def test_an_answer_of_an_http_server_may_be_compressed(http_collector, http_exporter):
    body = gzip.compress(partial(2))
    http_collector.headers = {"Content-Length": str(len(body)), "Content-Encoding": "gzip"}
    http_collector.answer = lambda: [body]

    assert http_exporter.send(b"", 3) == (Outcome.SENT, 2, "")


def test_a_connection_to_an_http_server_is_used_again(http_collector, http_exporter):
    for status, outcome in [(200, Outcome.SENT), (400, Outcome.REFUSED), (301, Outcome.REFUSED), (200, Outcome.SENT)]:
        http_collector.status = status
        assert http_exporter.send(b"", 3).outcome is outcome

    assert (http_collector.tries, len(http_collector.clients)) == (4, 1)


@pytest.mark.parametrize(("status", "outcome"), [(200, Outcome.SENT), (400, Outcome.REFUSED), (503, Outcome.AWAY)])
@pytest.mark.parametrize(
    ("headers", "part"),
    [
        pytest.param({"Content-Length": str(1 << 32)}, b"x" * (1 << 20), id="large"),
        pytest.param({"Content-Length": "1000"}, b"x", id="slow"),
        pytest.param({"Content-Length": "1000"}, b"", id="broken-off"),
        pytest.param({"Content-Length": "7", "Content-Encoding": "gzip"}, b"notgzip", id="not-as-announced"),
    ],
)
def test_an_answer_s_body_is_read_as_far_as_it_is_of_use(
    http_collector, http_exporter, monkeypatch, status, outcome, headers, part
):
    monkeypatch.setattr("otel_cache.sidecar.exporters.ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(http_exporter._client, "_timeout", 1.0)
    sent = 0

    def parts():
        nonlocal sent
        while sent < 1 << 30:
            yield part
            sent += len(part)
            if len(part) < 1 << 20:
                if len(part) != 1:
                    return
                time.sleep(0.05)

    http_collector.status = status
    http_collector.headers = headers
    http_collector.answer = parts
    began = time.monotonic()
    answer = http_exporter.send(b"", 3)

    assert answer.outcome is outcome
    assert time.monotonic() - began < 10
    assert sent < 64 << 20


def test_an_http_server_that_is_not_there_is_away(http_collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    http_collector.stop()
    exporter, _ = make_exporter(http_collector.endpoint)

    assert exporter.send(b"", 3).outcome is Outcome.AWAY
    exporter.shutdown()


def test_what_is_refused_for_good_is_counted_and_never_sent_again(start, socket_path, collector, capfd):
    collector.refuse = lambda request: grpc.StatusCode.INVALID_ARGUMENT
    sidecar = start(endpoint=collector.endpoint)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    wait_until(lambda: status_of(socket_path).spans_lost == SPANS)
    tries = collector.tries
    collector.refuse = lambda request: None
    peer.send(*whole_request(10))
    wait_until(lambda: status_of(socket_path).spans_exported)
    status = status_of(socket_path)
    sidecar.stop()

    assert (tries, collector.tries) == (1, 2)
    assert len(collector.spans) == SPANS
    assert (status.spans_exported, status.spans_lost, status.spans_waiting) == (SPANS, SPANS, 0)
    assert "INVALID_ARGUMENT" in status.export_error
    complaints = capfd.readouterr().err
    assert f"{SPANS} spans could not be exported" in complaints
    assert complaints.count("refuses spans for good") == 1


def test_what_was_lost_is_told_on_the_next_span_of_the_evidence(start, socket_path, tmp_path, collector):
    collector.refuse = lambda request: grpc.StatusCode.INVALID_ARGUMENT
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    wait_until(lambda: status_of(socket_path).spans_lost == SPANS)
    # These tell of the first, and are lost too: the last have to tell of both.
    peer.send(*whole_request(10))
    wait_until(lambda: status_of(socket_path).spans_lost == 2 * SPANS)
    collector.refuse = lambda request: None
    peer.send(*whole_request(20))
    wait_until(lambda: collector.requests)
    sidecar.stop()

    told = [
        span.attributes[names.EXPORT_DROPPED] for span in collector.spans if names.EXPORT_DROPPED in span.attributes
    ]
    assert told == [2 * SPANS]
    assert not any(names.EXPORT_DROPPED in span.attributes for span in read_lines(out))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_spans_that_a_collector_rejects_are_lost(start, socket_path, collector, http_collector, protocol, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    collector.rejected = 2
    http_collector.headers = {"Content-Length": str(len(partial(2)))}
    http_collector.answer = lambda: [partial(2)]
    sidecar = start(endpoint=(collector if protocol == "grpc" else http_collector).endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    wait_until(lambda: status_of(socket_path).spans_lost)
    status = status_of(socket_path)
    sidecar.stop()

    assert (status.spans_exported, status.spans_lost) == (SPANS - 2, 2)


def test_without_a_spool_a_collector_that_comes_back_gets_all(start, socket_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_SPOOL", "off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    sidecar = start(endpoint=collector.endpoint)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    wait_until(lambda: status_of(socket_path).export_failed)
    assert status_of(socket_path).spans_spooled == 0
    collector.start()
    wait_until(lambda: len(collector.spans) == SPANS)
    sidecar.stop()


class Scripted:
    """An exporter that gives these answers, one after the other, and then takes everything."""

    def __init__(self, outcomes):
        self.outcomes = list(outcomes)

    def send(self, data, spans):
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome.SENT
        return Answer(outcome, error="UNAVAILABLE: refused" if outcome is Outcome.AWAY else "")

    def shutdown(self):
        pass


AWAY, SENT = Outcome.AWAY, Outcome.SENT


@pytest.mark.parametrize(
    ("outcomes", "pause", "said"),
    [
        ([SENT, SENT], 0.0, []),
        ([AWAY, AWAY, AWAY, SENT], 0.0, ["no spans", "again"]),
        ([AWAY, Outcome.REFUSED], 0.0, ["no spans", "again"]),
        ([AWAY, SENT, AWAY, AWAY, SENT], 0.0, ["no spans", "again", "no spans", "again"]),
        # One that comes and goes is said once in a while.
        ([AWAY, SENT, AWAY, SENT, AWAY, SENT], 60.0, ["no spans", "again"]),
    ],
)
@pytest.mark.parametrize("spooled", [True, False])
def test_that_the_collector_is_away_and_back_is_said_once(
    tmp_path, monkeypatch, caplog, outcomes, pause, said, spooled
):
    monkeypatch.setattr(export, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(export, "SAY_SECONDS", pause)
    once = _Once()
    caplog.handler.addFilter(once)
    backlog = Backlog(Spool(str(tmp_path), "http://x", 3 << 20) if spooled else None)
    exporter = Scripted(outcomes)
    for _ in range(4):
        backlog.put(Encoded(b"x", 2))
    queue = ExportQueue(exporter, backlog)
    wait_until(lambda: not exporter.outcomes and not backlog.standing.waiting)
    queue.close()
    caplog.handler.removeFilter(once)

    texts = [record.getMessage() for record in caplog.records if "refuses spans" not in record.getMessage()]
    assert [next(word for word in ("no spans", "again") if word in text) for text in texts] == said
    if said:
        place = f"in {tmp_path}" if spooled else "in memory, at most 128 MiB"
        assert f"takes no spans (UNAVAILABLE: refused): they are kept {place}" in texts[0]
        assert "at most 3 MiB" in texts[0] or not spooled
        assert "spans wait to be sent" in texts[1]


def test_at_its_end_a_sidecar_says_what_it_keeps_and_not_that_it_will_be_sent(tmp_path, caplog):
    class Ended(Scripted):
        """An export that is ended by the shutdown."""

        def send(self, data, spans):
            queue._deadline = 0.0
            return Answer(Outcome.AWAY, error="the export was ended")

    backlog = Backlog(Spool(str(tmp_path), "http://x", 3 << 20))
    queue = ExportQueue(Ended([]), backlog)
    backlog.put(Encoded(b"x", 2))
    queue._thread.join(10)
    assert (backlog.standing.waiting, caplog.messages) == (2, [])
