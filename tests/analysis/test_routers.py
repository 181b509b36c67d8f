"""Routers' spans in a request's trace: whom they chose, what they saw cached, and what became of it."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, scenario

from analysis.test_counters import two_replicas
from analysis.test_coverage import analyzed, request_span
from analysis.test_evidence import SPANS
from analysis.test_fleet_and_pools import conversations
from analyzers.analysis import analyze
from analyzers.model import Analysis, LookupResult
from analyzers.readers import open_capture
from analyzers.reporters import text
from analyzers.reporters.json import to_object
from analyzers.story import stories
from tests.readers import otlp

PROMPT = 11910
"""Of the example's `repeat-1`."""
PREFIX_MATCH = "llm_d.kv_cache.prefix_match."
MATCH = {PREFIX_MATCH + "key_count": 24, PREFIX_MATCH + "longest_chain": 6}
PRODUCER = {"llm_d.epp.producer.total_blocks": 744, "llm_d.epp.producer.max_match_blocks": 600}
SCORER = {"llm_d.kv_cache.block_keys.count": 744, "llm_d.kv_cache.blocks_found": 700}
PICKER = {"llm_d.epp.picker.top_endpoints": ["llm-d/decode-1", "llm-d/decode-0"], "llm_d.epp.picker.top_scores": [7.0]}
STACK = {"vllm.backend_url": "http://a:8000", "vllm.routing_logic": "KvawareRouter", "vllm.request_id": "x"}
CLIENT = {"url.full": "http://b:8001/v1/completions", "server.address": "b", "server.port": 8001}


def routed(folder: Path, *spans: dict[str, Any], parent: dict[str, Any] | None = None) -> LookupResult:
    """Return `repeat-1` with `spans` of a router in its trace; `parent` are the attributes of its request's caller."""
    ours = request_span("repeat-1")
    made = [otlp.span("router", span, span_id=70 + i, start=1000 + i) for i, span in enumerate(spans)]
    own = SPANS
    if parent is not None:
        made.append(otlp.span("POST /v1/completions", parent, span_id=99))
        own = [(resource, {**span, "parentSpanId": f"{99:016x}"} if span is ours else span) for resource, span in SPANS]
    for span in made:
        span["traceId"] = ours["traceId"]
    analysis = analyzed(folder, own, made)
    assert analysis.lost == {"cold": 11910, "tail": 2130, "speculative_drop": 4800, "shifted_boundary": 9600}
    assert all(lookup.endpoint is None for lookup in analysis.lookups if lookup.request_id != "repeat-1")
    return next(lookup for lookup in analysis.lookups if lookup.request_id == "repeat-1")


@pytest.mark.parametrize(
    ("spans", "predicted"),
    [
        ([MATCH], PROMPT * 6 / 24),
        ([PRODUCER], PROMPT * 600 / 744),
        ([SCORER], PROMPT * 700 / 744),
        ([MATCH, PRODUCER, SCORER], PROMPT * 6 / 24),
        ([SCORER, PRODUCER], PROMPT * 600 / 744),
        # Its last word counts.
        ([MATCH, {**MATCH, PREFIX_MATCH + "longest_chain": 12}], PROMPT / 2),
        ([{**MATCH, PREFIX_MATCH + "longest_chain": 0}], 0),
        ([{**MATCH, PREFIX_MATCH + "longest_chain": 25}], None),
        ([{**MATCH, PREFIX_MATCH + "key_count": 0}], None),
        ([STACK], None),
    ],
)
def test_what_llm_d_saw_cached(tmp_path: Path, spans: list[dict[str, Any]], predicted: float | None) -> None:
    found = routed(tmp_path, *spans).router_hit_tokens
    assert found == (None if predicted is None else round(predicted))


@pytest.mark.parametrize(
    ("spans", "parent", "endpoint", "logic"),
    [
        ([STACK], None, "http://a:8000", "KvawareRouter"),
        # It tried another after the first had failed: the span of that call is the request's caller.
        ([STACK], {"vllm.backend_url": "http://c:8000"}, "http://c:8000", "KvawareRouter"),
        ([PICKER], None, "llm-d/decode-1", ""),
        ([], CLIENT, "b:8001", ""),
        ([], {"url.full": "http://user:word@b:8001/v1"}, "b:8001", ""),
        ([], {"server.address": "b"}, "b", ""),
        ([PICKER], CLIENT, "llm-d/decode-1", ""),
        # A client elsewhere in the trace called somebody else.
        ([CLIENT], None, None, ""),
        ([{"vllm.backend_url": 7}], {"url.full": "nowhere"}, None, ""),
    ],
)
def test_whom_a_router_chose(
    tmp_path: Path, spans: list[dict[str, Any]], parent: dict[str, Any] | None, endpoint: str | None, logic: str
) -> None:
    found = routed(tmp_path, *spans, parent=parent)
    assert (found.endpoint, found.routing_logic) == (endpoint, logic)


def test_a_story_tells_of_the_router(tmp_path: Path) -> None:
    """The example's request hit 9,600 where the router saw 6 of 24 blocks."""
    routed(tmp_path, {**STACK, **MATCH})
    (story,) = stories(open_capture([tmp_path]), "repeat-1")
    said = [moment.says for moment in story.moments]
    assert (
        "was sent to http://a:8000 by KvawareRouter; the router saw 2,978 tokens cached, the best replica would have "
        "hit 9,600"
    ) in said


def fleet(folder: Path, *spans: dict[str, Any]) -> Analysis:
    """Analyze two replicas with the example's requests, each in the example's trace, with these spans beside them."""
    capture = two_replicas(folder)
    (folder / "theirs.jsonl").write_bytes(otlp.line(otlp.resource(), list(spans), scope="router"))
    return analyze(open_capture([capture, folder / "theirs.jsonl"]))


def test_in_a_trace_of_several_requests_the_last_span_before_each_counts(tmp_path: Path) -> None:
    """Both replicas had a request in the trace; the router's first span is before both, its second after both."""
    ours = request_span("repeat-1")
    start = int(ours["startTimeUnixNano"])
    spans = []
    for index, (time, chain) in enumerate(((start - 1000, 6), (start + 1000, 12))):
        span = otlp.span("match_block_keys", {**MATCH, PREFIX_MATCH + "longest_chain": chain}, span_id=70 + index)
        spans.append(span | {"traceId": ours["traceId"], "startTimeUnixNano": str(time)})
    analysis = fleet(tmp_path, *spans)
    told = [(each.replica, each.router_hit_tokens) for each in analysis.lookups if each.router_hit_tokens is not None]
    assert told == [("replica-0", round(PROMPT / 4)), ("replica-1", round(PROMPT / 4))]


@pytest.mark.vllm
@pytest.mark.parametrize("endpoints", [1, 2])
def test_an_endpoint_with_two_replicas_behind_it(lab: Labs, tmp_path: Path, endpoints: int) -> None:
    """Round robin over two replicas of the real scheduler, by a router that sees one endpoint, or one for each.

    It saw 3 of 4 blocks of every prompt cached. Only where it sees one endpoint can it not choose.
    """
    path = tmp_path / "s.jsonl"
    lab["0.32.0"].run(scenario(conversations(3), FULL, replicas=2), path)
    spans = []
    for index, row in enumerate(open_capture([path]).requests.iter_rows(named=True)):
        told = {**STACK, PREFIX_MATCH + "key_count": 4, PREFIX_MATCH + "longest_chain": 3}
        told["vllm.backend_url"] = f"http://{'a' if endpoints == 1 else row['life']}:8000"
        spans.append(otlp.span("router", told, span_id=70 + index) | {"traceId": row["trace_id"]})
    (tmp_path / "theirs.jsonl").write_bytes(otlp.line(otlp.resource(), spans, scope="router"))
    analysis = analyze(open_capture([tmp_path]))
    assert analysis.fleet is not None
    regret = analysis.fleet.regret_tokens
    assert regret > 0
    rules = {finding.rule: finding for finding in analysis.findings}
    assert rules["routing"].evidence["regret_by_routing_logic"] == {"KvawareRouter": regret}

    assert len(analysis.routed) == endpoints
    assert sum(each.lookups for each in analysis.routed) == len(analysis.lookups) == 9
    assert sum(each.regret_tokens for each in analysis.routed) == regret
    assert sum(each.hit_tokens for each in analysis.routed) == analysis.hit_tokens
    predicted = sum(round(lookup.prompt_tokens * 3 / 4) for lookup in analysis.lookups)
    assert sum(each.predicted_tokens for each in analysis.routed) == predicted
    assert rules["router"].evidence["predicted_tokens"] == predicted
    real = sum(lookup.best_hit_tokens or 0 for lookup in analysis.lookups)
    assert rules["router"].evidence["real_tokens"] == sum(each.best_tokens for each in analysis.routed) == real
    written = to_object(analysis)["routed"]
    assert [each["predicted_tokens"] for each in written] == [each.predicted_tokens for each in analysis.routed]

    said = " ".join(text.render(analysis).split())
    if endpoints == 1:
        assert rules["router-endpoint"].evidence["regret_tokens"] == regret
        assert f"http://a:8000 (KvawareRouter): 9 lookups on replica-0, replica-1, hit {analysis.hit_tokens:,}" in said
    else:
        assert "router-endpoint" not in rules
        assert [list(each.replicas) for each in analysis.routed] == [["replica-0"], ["replica-1"]]
