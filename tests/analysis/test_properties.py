"""What must hold of any capture of a fleet: lost, shuffled, split and renamed evidence never makes up a cause."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.cases import FULL, HYBRID, request, scenario

from analysis.checks import check
from analysis.test_evidence import EVIDENCE, written
from analyzers.analysis import analyze
from analyzers.model import Analysis, LookupResult
from analyzers.readers import open_capture
from otel_cache.semconv import names

pytestmark = pytest.mark.vllm

Spans = list[tuple[dict[str, Any], dict[str, Any]]]


def fleet() -> dict[str, Any]:
    """Return a scenario on three replicas in which most classes occur: small pools, keys, overlap, a reset."""
    requests = [
        request("a", ("doc", 400)),
        request("b", ("doc", 400), ("b", 90)),
        request("c", ("doc", 300), ("c", 200), cache_salt="x"),
        request("d", ("other", 900), replica=0),
        request("e", ("doc", 400), replica=0),
        request("f", ("long", 1000), replica=1),
        request("g", ("long", 800), replica=1, **{"with": "f"}),
        request("h", ("long", 1000), replica=2),
        request("i", ("doc", 500), replica=1, reset=True),
        request("j", ("doc", 400), ("b", 90), times=4),
    ]
    return scenario(requests, FULL, replicas=3, num_gpu_blocks=80, max_num_batched_tokens=256)


def hybrids() -> dict[str, Any]:
    """Return a scenario on two hybrid replicas whose states are refused, never made, evicted and held elsewhere."""
    requests = [
        request("a", ("doc", 1200)),
        request("b", ("doc", 1200), times=3),
        request("c", ("doc", 1100), ("c", 300), times=3),
        request("d", ("x", 1500), times=2),
        request("e", ("doc", 1200), times=4),
    ]
    engine = {"block_size": 160, "prefix_cache_retention_interval": 0, "max_num_batched_tokens": 640}
    return scenario(requests, HYBRID, replicas=2, num_gpu_blocks=30, **engine)


@pytest.fixture(scope="module", params=[fleet, hybrids], ids=["fleet", "hybrids"])
def capture(lab: Labs, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of spans, one run per scenario, checked against what vLLM said."""
    path = tmp_path_factory.mktemp("capture") / "spans.jsonl"
    said = lab["0.32.0"].run(request.param(), path)
    check(analyze(open_capture([path])), said)
    return path


def spans(path: Path) -> Spans:
    """Return (resource, span) of a file."""
    return [
        (resource["resource"], span)
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def value(attributes: list[dict[str, Any]], name: str) -> Any:
    """Return a number of a span, None where it is absent."""
    return next((int(each["value"]["intValue"]) for each in attributes if each["key"] == name), None)


def last_of_each_life(all_spans: Spans) -> set[int]:
    """Return the indexes of the last spans of evidence: nothing tells that they are missing."""
    last: dict[str, tuple[int, int]] = {}
    for index, (resource, span) in enumerate(all_spans):
        number = value(span["attributes"], names.EVIDENCE_NUMBER)
        if number is not None:
            life = json.dumps(resource, sort_keys=True)
            last[life] = max(last.get(life, (-1, -1)), (number, index))
    return {index for _, index in last.values()}


def test_the_scenarios_show_the_classes(capture: Path) -> None:
    """The properties below are about something."""
    lost = analyze(open_capture([capture])).lost
    if "cold" in lost and len(json.loads(capture.read_text().splitlines()[0])) and "speculative_drop" not in lost:
        assert {"cold", "tail", "held_elsewhere"} <= set(lost)
    assert {"evicted", "key_difference", "reset"} <= set(lost) or {"shifted_boundary", "not_materialized"} & set(lost)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_lost_records_only_move_tokens_to_unknown(
    capture: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Drop any spans but the last of each life: what is left has its class, or `unknown`, and sums up."""
    everything = spans(capture)
    kept_anyway = last_of_each_life(everything)
    few = data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=6), label="dropped")
    dropped = set(few) - kept_anyway
    rest = [pair for index, pair in enumerate(everything) if index not in dropped]
    whole = {(one.replica, one.request_id): one for one in analyze(open_capture([capture])).lookups}
    analysis = analyze(open_capture([written(rest, tmp_path_factory.mktemp("cut") / "spans.jsonl")]))
    for one in analysis.lookups:
        assert one.hit_tokens + sum(one.lost.values()) == one.prompt_tokens
        full = whole[one.replica, one.request_id]
        for cls, tokens in one.lost.items():
            assert cls == "unknown" or tokens <= full.lost.get(cls, 0), (one, full)
    evidence = [everything[index][1]["name"] in EVIDENCE for index in dropped]
    assert (analysis.coverage.missing_records > 0) == any(evidence)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_files_and_order_do_not_matter(
    capture: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Shuffle the lines and spread them over files: the same analysis."""
    everything = spans(capture)
    order = data.draw(st.permutations(range(len(everything))))
    parts = data.draw(st.integers(1, 4))
    folder = tmp_path_factory.mktemp("parts")
    for part in range(parts):
        written([everything[i] for i in order[part::parts]], folder / f"{part}.jsonl")
    assert analyze(open_capture([folder])) == analyze(open_capture([capture]))


@pytest.mark.parametrize("renaming", [{0: "z", 1: "y", 2: "x"}, {0: "b", 1: "a", 2: "c"}], ids=str)
def test_names_of_replicas_do_not_matter(capture: Path, tmp_path: Path, renaming: dict[int, str]) -> None:
    """Other names: the same losses, hits, facts and findings, under those names."""
    text = capture.read_text()
    for index, name in renaming.items():
        text = text.replace(f'"replica-{index}"', f'"{name}"')
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text(text)
    back = {name: f"replica-{index}" for index, name in renaming.items()}
    one, other = analyze(open_capture([capture])), analyze(open_capture([renamed]))
    assert [named(each, {}) for each in ordered(one)] == [named(each, back) for each in ordered(other)]
    assert one.lost == other.lost
    assert one.fleet == other.fleet
    assert [finding.rule for finding in one.findings] == [finding.rule for finding in other.findings]
    assert [finding.tokens_lost for finding in one.findings] == [finding.tokens_lost for finding in other.findings]


def ordered(analysis: Analysis) -> list[LookupResult]:
    """Return the lookups in an order that no name of a replica has a part in."""
    return sorted(analysis.lookups, key=lambda lookup: (lookup.time, lookup.request_id))


def named(lookup: LookupResult, back: Mapping[str, str]) -> LookupResult:
    """Return a lookup with the names of its replicas mapped, and without what else depends on them: sentences."""

    def mapped(data: Mapping[str, Any]) -> dict[str, Any]:
        plain = dict(data)
        if "replica" in plain:
            plain["replica"] = back.get(plain["replica"], plain["replica"])
        if "replicas" in plain:
            plain["replicas"] = sorted(back.get(name, name) for name in plain["replicas"])
        return plain

    return replace(
        lookup,
        replica=back.get(lookup.replica, lookup.replica),
        life=0,
        cause="",
        best_replicas=sorted(back.get(name, name) for name in lookup.best_replicas),
        facts=[replace(fact, says="", data=mapped(fact.data)) for fact in lookup.facts],
    )


def test_replicas_with_other_blocks_compare(lab: Labs, tmp_path: Path) -> None:
    """Blocks of 1,568 and of 1,600 meet on the common grid: what one holds, the other is told of.

    The second lookup could hit 11,200 = 7 * 1,600; the first replica registered 10,976 = 7 * 1,568.
    """
    first = scenario([request("one", ("doc", 11910))], FULL, block_size=1568)
    second = scenario([request("two", ("doc", 11910), replica=1)], FULL, block_size=1600, replicas=2)
    lab["0.32.0"].run(first, tmp_path / "first.jsonl")
    lab["0.32.0"].run(second, tmp_path / "second.jsonl")
    analysis = analyze(open_capture([tmp_path / "first.jsonl", tmp_path / "second.jsonl"]))
    two = analysis.lookups[-1]
    assert two.lost == {"tail": 710, "alignment": 224, "held_elsewhere": 10976}
    assert (two.best_hit_tokens, two.best_replicas) == (10976, ["replica-0"])


SHARED_THEN_OWN = [request("p", ("doc", 11910)), request("c", ("doc", 11195), ("q", 500))]


def test_a_divergence_inside_a_block(lab: Labs, tmp_path: Path) -> None:
    """Blocks of 16: of 11,195 shared tokens 11,184 = 699 * 16 are hit and nothing avoidable is lost."""
    path = tmp_path / "s.jsonl"
    said = lab["0.33.0"].run(scenario(SHARED_THEN_OWN, FULL, num_gpu_blocks=2000), path)
    analysis = analyze(open_capture([path]))
    check(analysis, said)
    assert (analysis.lookups[1].hit_tokens, analysis.lookups[1].lost) == (11184, {"cold": 511})


def test_a_divergence_with_partial_hits(lab: Labs, tmp_path: Path) -> None:
    """Hash blocks of 400 in blocks of 1,600: of 11,700 shared tokens 11,600 are hit."""
    requests = [request("p", ("doc", 11910)), request("c", ("doc", 11700), ("q", 500))]
    path = tmp_path / "s.jsonl"
    engine = {"block_size": 1600, "prefix_match_unit": 400, "num_gpu_blocks": 2000}
    said = lab["0.33.0"].run(scenario(requests, HYBRID, **engine), path)
    analysis = analyze(open_capture([path]))
    check(analysis, said)
    assert (analysis.lookups[1].hit_tokens, analysis.lookups[1].lost) == (11600, {"cold": 600})


@pytest.mark.parametrize(("tokens", "hit"), [(11200, 9600), (11201, 11200)])
def test_a_key_that_covers_a_token_more(lab: Labs, tmp_path: Path, tokens: int, hit: int) -> None:
    """0.33 with MTP: a block's key covers a token beyond its end, so 11,200 shared tokens are too few for 7 blocks."""
    requests = [request(name, ("doc", tokens), (name, 700)) for name in ("p", "c", "d")]
    path = tmp_path / "s.jsonl"
    engine = {
        "block_size": 1600, "speculative": {"method": "mtp", "num_speculative_tokens": 2},
        "prefix_cache_retention_interval": "dense",
    }  # fmt: skip
    said = lab["0.33.0"].run(scenario(requests, HYBRID, **engine), path)
    analysis = analyze(open_capture([path]))
    check(analysis, said)
    assert analysis.lookups[2].hit_tokens == hit
