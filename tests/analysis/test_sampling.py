"""A capture that a collector sampled: `unknown` for what is missing, and the whole report where the evidence is."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.test_evidence import EVIDENCE, written
from analysis.test_properties import Spans, capture, spans
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from otel_cache.semconv import names

__all__ = ["capture"]

pytestmark = pytest.mark.vllm

SAMPLER = "tail_sampling{losing, error, 10 % of the rest}"


def sampled(everything: Spans, traces: set[str]) -> Spans:
    """Return the spans of these traces as a collector sends them on that keeps no others."""
    kept = copy.deepcopy([(resource, span) for resource, span in everything if span["traceId"] in traces])
    for resource, _ in kept:
        resource["attributes"].append({"key": names.COLLECTOR_SAMPLER, "value": {"stringValue": SAMPLER}})
    return kept


def plain(analysis: Analysis) -> Analysis:
    """Return an analysis without the notes on how its capture was read."""
    return replace(analysis, coverage=replace(analysis.coverage, notes=[]))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_traces_that_were_not_kept_only_move_tokens_to_unknown(
    capture: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Keep any traces, of some replicas perhaps none: each class has what it had, or less and the rest is unknown."""
    everything = spans(capture)
    known = sorted({span["traceId"] for _, span in everything})
    traces = data.draw(st.sets(st.sampled_from(known), min_size=1), label="kept")
    path = written(sampled(everything, traces), tmp_path_factory.mktemp("sampled") / "spans.jsonl")
    whole = {(one.replica, one.request_id): one for one in analyze(open_capture([capture])).lookups}
    analysis = analyze(open_capture([path]))
    for one in analysis.lookups:
        assert one.hit_tokens + sum(one.lost.values()) == one.prompt_tokens
        full = whole[one.replica, one.request_id]
        for cls, tokens in one.lost.items():
            assert cls == "unknown" or tokens <= full.lost.get(cls, 0), (one, full)
    assert analysis.coverage.missing_records == 0, "it was sampled, not lost"
    assert list(analysis.coverage.samplers) == [SAMPLER]
    numbers = [
        (json.dumps(resource), attribute["value"]["intValue"])
        for resource, span in everything
        if span["traceId"] in traces and span["name"] in EVIDENCE
        for attribute in span["attributes"]
        if attribute["key"] == names.EVIDENCE_NUMBER
    ]
    lives = {life for life, _ in numbers}
    last = {life: max(int(number) for other, number in numbers if other == life) for life in lives}
    assert analysis.coverage.sampled_spans == sum(last.values()) + len(lives) - len(numbers)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_beside_the_whole_evidence_what_was_sampled_changes_nothing(
    capture: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What the back end got is read first, or last: the report is that of the evidence."""
    everything = spans(capture)
    known = sorted({span["traceId"] for _, span in everything})
    kept = sampled(everything, data.draw(st.sets(st.sampled_from(known), min_size=1), label="kept"))
    folder = tmp_path_factory.mktemp("both")
    first, second = data.draw(st.permutations([everything, kept]), label="order")
    written(first, folder / "1.jsonl")
    written(second, folder / "2.jsonl")
    assert plain(analyze(open_capture([folder]))) == plain(analyze(open_capture([capture])))
