"""The gateway: who gets in, what it keeps of the traces, and what that does to an analysis."""

import json
import math
import ssl
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from conftest import Labs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from sidecar.collectors import Collector as Sink
from sidecar.collectors import write_lines
from sidecar.support import Read

from analyzers.analysis import analyze
from analyzers.readers import open_capture
from otel_cache.semconv import names

from .gateways import EXPORT, TOKEN, certify
from .load import EXPORT_SECONDS, hybrid, losing, plenty, report, spans_of, traced
from .programs import Collector, Programs, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
DEVIATIONS = 6
"""So many standard deviations from its mean a share may be: a sound run is outside once in 500 million."""


@dataclass(frozen=True)
class Secured:
    """A gateway, its certificate, and what it sends on."""

    gateway: Collector
    certificate: Path
    sink: Sink

    @property
    def environment(self) -> dict[str, str]:
        """What a sidecar needs to get in."""
        return {
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(self.certificate),
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
        }


@pytest.fixture
def secured(programs: Programs, tmp_path: Path) -> Iterator[Secured]:
    """A gateway that sends on to an OTLP server of this test."""
    certificate, files = certify(tmp_path)
    sink = Sink()
    sink.start()
    gateway = programs.collector(
        "gateway.yaml",
        **files,
        OTEL_CACHE_COLLECTOR_BACKEND=f"localhost:{sink.port}",
        OTEL_CACHE_COLLECTOR_DECISION_WAIT="3s",
    )
    yield Secured(gateway, certificate, sink)
    sink.stop()


def one_span(name: str = "foreign", error: bool = False, trace: int = 1) -> ExportTraceServiceRequest:
    """Return a request with a span of another program."""
    status = Status(code=Status.STATUS_CODE_ERROR if error else Status.STATUS_CODE_UNSET)
    span = Span(
        trace_id=trace.to_bytes(16, "big"), span_id=trace.to_bytes(8, "big"), name=name, status=status,
        start_time_unix_nano=1, end_time_unix_nano=2,
    )  # fmt: skip
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])])


def send(secured: Secured, token: str | None, tls: bool = True) -> grpc.StatusCode:
    """Send a span by gRPC; return the status."""
    credentials = grpc.ssl_channel_credentials(secured.certificate.read_bytes())
    address = secured.gateway.grpc
    metadata = [] if token is None else [("authorization", token)]
    with grpc.secure_channel(address, credentials) if tls else grpc.insecure_channel(address) as channel:
        export = channel.unary_unary(
            EXPORT, ExportTraceServiceRequest.SerializeToString, ExportTraceServiceResponse.FromString
        )
        try:
            export(one_span(), metadata=metadata, timeout=60, wait_for_ready=False)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def post(secured: Secured, token: str | None, tls: bool = True) -> int | None:
    """Send a span by HTTP; return the status, None where there was no answer to understand."""
    headers = {"content-type": "application/x-protobuf", **({} if token is None else {"authorization": token})}
    url = f"http{'s' if tls else ''}://{secured.gateway.http}/v1/traces"
    context = ssl.create_default_context(cafile=str(secured.certificate))
    try:
        body = one_span().SerializeToString()
        return httpx.post(url, content=body, headers=headers, verify=context, timeout=60).status_code
    except httpx.TransportError:
        return None


def test_only_who_has_the_token_gets_in_and_only_by_tls(secured: Secured) -> None:
    """By gRPC and by HTTP."""
    # The token is read once the gateway has started.
    wait_until(lambda: send(secured, f"Bearer {TOKEN}") is grpc.StatusCode.OK, "the token is known")
    for token in (None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}"):
        assert send(secured, token) is grpc.StatusCode.UNAUTHENTICATED, token
    assert send(secured, f"Bearer {TOKEN}", tls=False) is grpc.StatusCode.UNAVAILABLE
    assert post(secured, f"Bearer {TOKEN}") == 200
    for token in (None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}"):
        assert post(secured, token) == 401, token
    assert post(secured, f"Bearer {TOKEN}", tls=False) in (None, 400)
    accepted = secured.gateway.internal("otelcol_receiver_accepted_spans")
    assert accepted == 2, "nothing but what had the token, once by gRPC and once by HTTP"


def test_without_a_token_it_lets_nobody_in(programs: Programs, tmp_path: Path) -> None:
    """An empty file has no token in it."""
    certificate, files = certify(tmp_path, token="")
    gateway = programs.collector("gateway.yaml", **files)
    secured = Secured(gateway, certificate, Sink())
    for token in (None, "Bearer ", "Bearer", ""):
        assert send(secured, token) is grpc.StatusCode.UNAUTHENTICATED, token


@dataclass(frozen=True)
class Sampled:
    """What the sidecar wrote, and what the gateway sent on of it."""

    evidence: Path
    written: list[Read]
    kept: list[Read]
    lines: Path


@pytest.fixture
def sampled(lab: Labs, secured: Secured, tmp_path: Path) -> Sampled:
    """A load with and without losses, by way of the gateway, all of it decided about."""
    failed = [one_span(error=True, trace=trace) for trace in range(1, 20)]
    endpoint = f"https://{secured.gateway.grpc}"
    with traced(lab["0.32.0"], tmp_path / "load", endpoint, **secured.environment) as load:
        load.run(hybrid("h"))
        load.run(plenty("p", 500))
        load.await_exported()
    credentials = grpc.ssl_channel_credentials(secured.certificate.read_bytes())
    with grpc.secure_channel(secured.gateway.grpc, credentials) as channel:
        export = channel.unary_unary(
            EXPORT, ExportTraceServiceRequest.SerializeToString, ExportTraceServiceResponse.FromString
        )
        for request in failed:
            export(request, metadata=[("authorization", f"Bearer {TOKEN}")], timeout=60)
    written = spans_of(load.out)
    traces = {span.trace_id for span in written}
    wait_until(
        lambda: (
            secured.gateway.internal("otelcol_processor_tail_sampling_global_count_traces_sampled")
            >= len(traces) + len(failed)
        ),
        "all traces are decided about",
        EXPORT_SECONDS,
    )
    assert secured.gateway.stop() == 0
    lines = tmp_path / "sampled.jsonl"
    write_lines(secured.sink.requests, lines)
    return Sampled(load.out, written, secured.sink.spans, lines)


def by_trace(spans: Sequence[Read]) -> dict[str, set[str]]:
    """Return the span ids of each trace."""
    found: dict[str, set[str]] = defaultdict(set)
    for span in spans:
        found[span.trace_id].add(span.span_id)
    return found


def test_losing_traces_are_kept_and_a_share_of_the_others(sampled: Sampled) -> None:
    """Whole, all of them; of the rest a tenth, give or take what chance does; and an analysis that says `unknown`."""
    written, kept = by_trace(sampled.written), by_trace(sampled.kept)
    lost = losing(sampled.written)
    assert len(lost) >= 5
    assert lost <= set(kept)
    for trace in set(written) & set(kept):
        assert kept[trace] == written[trace], "a trace is kept as a whole"
    others = set(written) - lost
    share = len(others & set(kept)) / len(others)
    assert abs(share - 0.1) < DEVIATIONS * math.sqrt(0.1 * 0.9 / len(others)), f"{share:.1%} of {len(others)}"
    errors = {span.trace_id for span in sampled.kept if span.name == "foreign"}
    assert len(errors) == 19, "every trace with an error"
    assert all("10 %" in span.resource[names.COLLECTOR_SAMPLER] for span in sampled.kept)
    a_sampled_capture_alone_is_unknown(sampled)
    beside_the_evidence_it_changes_nothing(sampled)


def a_sampled_capture_alone_is_unknown(sampled: Sampled) -> None:
    """No cause is made up: each class has what it had, or less and the rest is `unknown`."""
    whole = {(one.replica, one.request_id, one.time): one for one in analyze(open_capture([sampled.evidence])).lookups}
    analysis = analyze(open_capture([sampled.lines]))
    assert analysis.lookups
    for one in analysis.lookups:
        full = whole[one.replica, one.request_id, one.time]
        assert (one.prompt_tokens, one.hit_tokens) == (full.prompt_tokens, full.hit_tokens)
        for cls, tokens in one.lost.items():
            assert cls == "unknown" or tokens <= full.lost.get(cls, 0), (one, full)
    assert analysis.lost["unknown"] > 0
    assert analysis.coverage.missing_records == 0
    assert analysis.coverage.sampled_spans > 0
    assert "sampled" in {finding.rule for finding in analysis.findings}


def beside_the_evidence_it_changes_nothing(sampled: Sampled) -> None:
    """The evidence alone, and the evidence with the tenth that was sent on: one report."""
    assert report(sampled.evidence, sampled.lines) == report(sampled.evidence)
    assert report(sampled.lines, sampled.evidence) == report(sampled.evidence)
    assert json.loads(report(sampled.evidence))["tokens"]["lost"].get("unknown", 0) == 0
