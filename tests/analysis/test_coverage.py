"""What a report says of its own ground: figures of other programs, clocks that differ, sampling."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.test_evidence import SPANS, written
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from otel_cache.semconv import names
from tests.readers import otlp

MILLISECOND = 1_000_000


def request_span(name: str) -> dict[str, Any]:
    """Return the request span of the example with this id."""
    return next(
        span
        for _, span in SPANS
        if span["name"] == names.REQUEST
        and any(each["key"] == names.REQUEST_ID and each["value"]["stringValue"] == name for each in span["attributes"])
    )


def analyzed(folder: Path, spans: Any, foreign: list[dict[str, Any]]) -> Analysis:
    """Analyze the example's spans with those of another program beside them."""
    written(spans, folder / "ours.jsonl")
    (folder / "theirs.jsonl").write_bytes(otlp.line(otlp.resource(), foreign, scope="vllm.llm_engine"))
    return analyze(open_capture([folder]))


def llm_request(trace_id: str, **attributes: Any) -> dict[str, Any]:
    """Return vLLM's own span of a request, in this trace."""
    span = otlp.span("llm_request", attributes, span_id=77)
    span["traceId"] = trace_id
    return span


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"gen_ai.request.id": "repeat-1", names.USAGE_CACHE_READ_TOKENS: 9600}, None),
        ({"gen_ai.request.id": "repeat-1", "gen_ai.usage.prompt_tokens": 11910}, None),
        ({"gen_ai.request.id": "repeat-1", "gen_ai.usage.cached_tokens": 0}, "0 cached tokens, the lookup 9,600"),
        ({"gen_ai.usage.cache_read_input_tokens": 9600, "gen_ai.usage.prompt_tokens": 7}, "7 prompt tokens"),
        ({"gen_ai.request.id": "somebody else", "gen_ai.usage.cached_tokens": 0}, "0 cached tokens, the lookup 9,600"),
    ],
)
def test_figures_that_disagree_are_a_finding_of_their_own(
    tmp_path: Path, said: dict[str, Any], found: str | None
) -> None:
    """A request is told by its id, or by its trace where that holds one request; classes stay as they are."""
    ours = request_span("repeat-1")
    analysis = analyzed(tmp_path, SPANS, [llm_request(ours["traceId"], **said)])
    reporting = [finding for finding in analysis.findings if finding.rule == "reporting"]
    assert len(reporting) == (found is not None)
    assert analysis.lost == {"cold": 11910, "tail": 2130, "speculative_drop": 4800, "shifted_boundary": 9600}
    if found is not None:
        (finding,) = reporting
        assert (finding.severity, finding.tokens_lost) == ("error", 0)
        assert found in finding.cause
        assert analysis.lookups[finding.lookup or 0].request_id == "repeat-1"


@pytest.mark.parametrize(("blocks", "found"), [(20, False), (24, True), (0, True)])
def test_a_router_s_prediction_is_held_against_the_hit(tmp_path: Path, blocks: int, found: bool) -> None:
    """llm-d's router saw so many of 24 blocks cached; the request hit 9,600 of 11,910 tokens: 19.3 of them."""
    router = {"llm_d.kv_cache.prefix_match.key_count": 24, "llm_d.kv_cache.prefix_match.longest_chain": blocks}
    span = otlp.span("match_block_keys", router, span_id=77)
    span["traceId"] = request_span("repeat-1")["traceId"]
    analysis = analyzed(tmp_path, SPANS, [span])
    findings = [finding for finding in analysis.findings if finding.rule == "router"]
    assert len(findings) == found
    for finding in findings:
        assert finding.evidence["predicted_tokens"] == round(blocks / 24 * 11910)
        assert finding.evidence["real_tokens"] == 9600


@pytest.mark.parametrize(("shift", "skew"), [(0, 0.0), (-3 * MILLISECOND, -3.0), (50 * MILLISECOND, 40.0)])
def test_clocks_that_differ_show(tmp_path: Path, shift: int, skew: float) -> None:
    """A request that begins before its caller sent it, or after the caller had its answer, 10 ms later."""
    spans = copy.deepcopy(SPANS)
    ours = request_span("repeat-1")
    caller = otlp.span("chat", {names.USAGE_INPUT_TOKENS: 11910}, span_id=77)
    start = int(ours["startTimeUnixNano"]) - shift
    caller |= {
        "traceId": ours["traceId"],
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 10 * MILLISECOND),
    }
    for _, span in spans:
        if span["spanId"] == ours["spanId"]:
            span["parentSpanId"] = caller["spanId"]
    analysis = analyzed(tmp_path, spans, [caller])
    assert analysis.coverage.skew == {"replica-0": skew}


def test_what_sampling_kept_back_is_no_lost_record(tmp_path: Path) -> None:
    """Two spans of evidence were not sampled, as the next one says: nothing is missing, and causes are unknown."""
    evidence = [i for i, (_, span) in enumerate(SPANS) if span["name"] in (names.LOOKUP, names.STORE, names.EVICT)]
    spans = copy.deepcopy(SPANS)
    spans[evidence[3]][1]["attributes"].append({"key": names.SAMPLING_DROPPED, "value": {"intValue": "2"}})
    for resource, _ in spans:
        resource["attributes"].append({"key": names.SAMPLER, "value": {"stringValue": "traceidratio, 0.1"}})
    kept = [pair for i, pair in enumerate(spans) if i not in evidence[1:3]]
    coverage = analyze(open_capture([written(kept, tmp_path / "s.jsonl")])).coverage
    assert (coverage.missing_records, coverage.sampled_spans, list(coverage.samplers)) == (0, 2, ["traceidratio, 0.1"])
    assert list(coverage.incomplete_replicas) == ["replica-0"]
    analysis = analyze(open_capture([tmp_path / "s.jsonl"]))
    assert "unknown" in analysis.lost
    assert "sampled" in {finding.rule for finding in analysis.findings}


def test_a_capture_says_when_it_began_and_ended() -> None:
    times = [
        int(span["startTimeUnixNano"]) for _, span in SPANS if span["name"] in (names.LOOKUP, names.STORE, names.EVICT)
    ]
    with_steps = json.dumps([span["name"] for _, span in SPANS])
    assert names.STEP in with_steps
    from analysis.test_evidence import example

    coverage = example().coverage
    assert (coverage.begin, coverage.end) == (min(times), max(times))
