"""What a finding advises is applied to the scenario: it gives back what it says, and nothing useless is advised."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, MTP, documented, request, resent, scenario, shipped
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find
from analyzers.experiments.compare import compare
from analyzers.fixes import Case, fix_not_materialized, fix_shifted
from analyzers.model import Analysis, Finding, GroupState, LookupResult
from analyzers.reporters.compare import render as render_diff
from analyzers.reporters.json import to_object
from analyzers.settings import Group, Settings

pytestmark = pytest.mark.vllm

WINDOW: dict[str, Any] = {"kind": "sliding_window", "window": 128}
MULTIPLES: list[dict[str, Any]] = [
    {"kind": "full_attention", "block_size": 16},
    WINDOW | {"block_size": 64},
    {"kind": "mamba", "block_size": 1600},
]
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "hybrid": HYBRID,
    "window and full": [WINDOW, *FULL],
    "multiples": MULTIPLES,
    "two sizes": [{"kind": "mamba"}, {"kind": "full_attention", "block_size": 800}],
}


def finding_of(rule: str, analysis: Analysis) -> Finding:
    """Return the finding of this rule."""
    return next(finding for finding in analysis.findings if finding.rule == rule)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_match_unit_is_advised_where_it_brings_the_boundary_closer(
    lab: Labs, tmp_path: Path, version: str, layout: str
) -> None:
    """A prompt of 700 tokens, sent again over blocks of 800 or 1,600: which unit, if any, lets it hit?"""
    case = scenario(resent(700), LAYOUTS[layout], block_size=1600, num_gpu_blocks=1000)
    before = analyzed(lab[version], case, tmp_path / "before.jsonl")
    best = before.hit_tokens
    assert best == 0
    for unit in (8, 16):
        engine = {**case["engine"], "prefix_match_unit": unit}
        after = analyzed(lab[version], {**case, "engine": engine}, tmp_path / f"{unit}.jsonl")
        best = max(best, after.hit_tokens)
    advised = any("--prefix-match-unit" in finding.fix for finding in before.findings)
    assert advised == (best > before.hit_tokens)


def test_a_single_group_has_no_match_unit(lab: Labs, tmp_path: Path) -> None:
    """vLLM's hits land on the blocks of the one group."""
    analysis = analyzed(lab["0.32.0"], scenario(resent(1000), block_size=1600), tmp_path / "s.jsonl")
    fix = finding_of("alignment", analysis).fix
    assert "smaller blocks" in fix
    assert "--prefix-match-unit" not in fix


def test_a_block_that_is_all_of_the_prompt_is_not_too_short_to_be_cached(lab: Labs, tmp_path: Path) -> None:
    """16 tokens in blocks of 16 are cached, and no resend of them can hit: its last token is computed."""
    requests = [request("one", ("doc", 16)), request("two", ("doc", 16)), request("longer", ("doc", 17))]
    analysis = analyzed(lab["0.32.0"], scenario(requests), tmp_path / "s.jsonl")
    assert find(analysis, "two").lost == {"alignment": 16}
    assert find(analysis, "longer").hit_tokens == 16
    assert "last token of a prompt is always computed" in find(analysis, "two").cause
    assert "goes on beyond" in finding_of("alignment", analysis).fix


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("tokens", "tail"), [(11910, 710), (11200, 1600)])
def test_routing_promises_what_the_other_replica_would_have_hit(
    lab: Labs, tmp_path: Path, version: str, tokens: int, tail: int
) -> None:
    """The other replica holds the prefix in attention, and a state where a resend needs it or not."""
    requests = [request("one", ("doc", tokens)), request("two", ("doc", tokens))]
    engine = {"block_size": 1600, "prefix_cache_retention_interval": 0}
    apart = scenario(requests, HYBRID, replicas=2, **engine)
    analysis = analyzed(lab[version], apart, tmp_path / "apart.jsonl")
    together = analyzed(lab[version], {**apart, "replicas": 1}, tmp_path / "together.jsonl")
    held = tokens - tail
    assert find(analysis, "two").lost == {"tail": tail, "held_elsewhere": held}
    fix, hit = finding_of("held-elsewhere", analysis).fix, find(together, "two").hit_tokens
    assert fix.startswith("route requests that share a prefix to the same replica")
    assert ("no other replica would have hit more" in fix) == (hit == 0)
    assert ("another one would have hit" in fix) == (0 < hit < held)
    assert finding_of("held-elsewhere", analysis).tokens_regained == hit
    assert [tokens for tokens, _ in analysis.best_fixes] == ([hit] if hit else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_routing_promises_no_block_that_speculation_takes_there_too(lab: Labs, tmp_path: Path, version: str) -> None:
    """All of the prefix is held elsewhere; what comes back is what one replica gives both requests."""
    requests = [request("one", ("doc", 11910)), request("two", ("doc", 11910))]
    apart = scenario(
        requests, HYBRID, replicas=2, block_size=1600, prefix_cache_retention_interval=1600, speculative=MTP
    )
    analysis = analyzed(lab[version], apart, tmp_path / "apart.jsonl")
    together = analyzed(lab[version], {**apart, "replicas": 1}, tmp_path / "together.jsonl")
    finding = finding_of("held-elsewhere", analysis)
    assert finding.tokens_lost == 11200
    assert finding.tokens_regained == find(together, "two").hit_tokens > 0
    assert analysis.best_fixes == [(finding.tokens_regained, finding.fix)]


@pytest.mark.parametrize(("name", "lower"), [("documented", 8000), ("shortened", 6400)])
def test_the_loss_that_moved_a_boundary_need_not_end_first(lab: Labs, tmp_path: Path, name: str, lower: int) -> None:
    """Less of the prefix is held, so that a hit needs a lower boundary: an interval that keeps it is enough."""
    if name == "documented":
        case = documented()
    else:
        one, two = (request(name, ("doc", 11910), replica=at) for at, name in enumerate(("one", "two")))
        other = request("child", ("doc", 8100), ("q", 500), replica=1)
        engine: dict[str, Any] = {"block_size": 1600, "prefix_cache_retention_interval": 0, "speculative": MTP}
        case = scenario([one, other, two], HYBRID, replicas=2, **engine)
    before = analyzed(lab[OLD], case, tmp_path / "before.jsonl")
    lookup = before.lookups[-1]
    assert (lookup.needed_boundary, lookup.reason.split(",")[-1]) == (lower, "held_prefix")
    assert lookup.lost["shifted_boundary"] == lower
    assert not any("first end the loss" in finding.fix for finding in before.findings)
    case["engine"]["prefix_cache_retention_interval"] = 1600
    assert analyzed(lab[OLD], case, tmp_path / "after.jsonl").lookups[-1].hit_tokens == lower


@pytest.mark.parametrize(("ladder", "first"), [
    ([("evicted", 11200, 9632), ("speculative_drop", 9632, 8032)], True),
    ([("evicted", 9640, 9632), ("speculative_drop", 9632, 8032)], False),
    ([("speculative_drop", 9632, 8032), ("evicted", 8032, 0)], False),
])  # fmt: skip
def test_it_does_where_no_interval_keeps_the_lower_boundary(ladder: list[tuple[str, int, int]], first: bool) -> None:
    """8,032 is no multiple of the scheduler block; what the whole prefix needs is another boundary, or the same one."""
    full = Group(0, "full_attention", 1600, 0, flagged=False, drops=False, fine_grained=True)
    settings = Settings((full,), ((0,),), 32, 32, 1600, 1600, 0, True, False, True, "0", OLD, "mtp", 8192, "")
    row = LookupResult("two", "r", 0, 0, 1, 11910, 0, 0, 8032, {"shifted_boundary": 8032}, [0], [], "held_prefix")
    row.ladder = ladder
    fix = fix_shifted(Case("shifted_boundary", settings, [row], row))
    assert fix.says.startswith("first end the loss that moved the boundary") == first
    assert "o retention interval keeps a state at 8,032" in fix.says
    assert fix.change is None


OLD = "0.28.0"
"""The last version whose prompts leave nothing that a resend with speculation can use."""


def two_prompts(interval: int, blocks: int, replicas: int = 2) -> dict[str, Any]:
    """Return a prompt that comes again and again, and another one in between, on pools of so many blocks."""
    requests = [
        request("long", ("doc", 11910), times=4),
        request("noise", ("other", 20000), times=2),
        request("again", ("doc", 11910), times=4),
    ]
    return scenario(
        requests, HYBRID, replicas=replicas, block_size=1600, prefix_cache_retention_interval=interval,
        speculative=MTP, max_num_batched_tokens=8192, num_gpu_blocks=blocks,
    )  # fmt: skip


def advised(fix: str) -> int:
    """Return the retention interval that a fix asks for."""
    return int(re.findall(r"RETENTION_INTERVAL=(\d+)", fix)[0])


def test_the_price_of_an_interval_is_what_the_scheduler_keeps(lab: Labs, tmp_path: Path) -> None:
    """States are where chunks end: each interval is applied, and the blocks of the Mamba groups are counted."""
    before = analyzed(lab[OLD], shipped("model_case"), tmp_path / "before.jsonl")
    fix = finding_of("shifted-boundary", before).fix
    first = re.findall(r"leaves ([\d,]+) blocks in groups 0-2 \(mamba\), today ([\d,]+)", fix)[0]
    others = fix.partition("as stand behind them: ")[2].partition(". ")[0]
    said = {advised(fix): int(first[0])}
    said |= {int(size.replace(",", "")): int(blocks) for size, blocks in re.findall(r"([\d,]+) \((\d+)\)", others)}
    kept = {}
    for interval in (0, 1600, 3200, 4800, 9600):
        case = shipped("model_case", prefix_cache_retention_interval=interval)
        case["requests"] = [request("cold", ("doc", 11910))]
        (pool,) = analyzed(lab[OLD], case, tmp_path / f"{interval}.jsonl").capacity
        kept[interval] = sum(group.stored for group in pool.groups[:3])
    assert said == {interval: blocks for interval, blocks in kept.items() if interval}
    assert int(first[1]) == kept[0]
    assert kept[1600] > kept[9600] > kept[0] == 0


def test_an_interval_that_the_pool_has_no_room_for_is_not_advised(lab: Labs, tmp_path: Path) -> None:
    """In a pool of 40 blocks the densest interval moves the losses to evictions; the advised one ends them."""
    before = analyzed(lab[OLD], two_prompts(0, 40), tmp_path / "before.jsonl")
    finding = finding_of("shifted-boundary", before)
    assert "An interval of 1,600 would keep up to 15 blocks more, and the pool of 39 had room" in finding.fix
    assert "otel-cache lab sweep CAPTURE" in finding.fix
    dense = analyzed(lab[OLD], two_prompts(1600, 40), tmp_path / "dense.jsonl")
    assert dense.lost["checkpoint_evicted"] == finding.tokens_lost
    sparse = analyzed(lab[OLD], two_prompts(advised(finding.fix), 40), tmp_path / "sparse.jsonl")
    assert sparse.hit_tokens == before.hit_tokens + finding.tokens_lost
    assert not {"checkpoint_evicted", "shifted_boundary"} & set(sparse.lost)
    # What the dense interval lost, its own finding ends by a sparser one.
    again = finding_of("checkpoint-evicted", dense)
    assert "Or keep fewer states: set the environment" in again.fix
    cured = analyzed(lab[OLD], two_prompts(advised(again.fix), 40), tmp_path / "cured.jsonl")
    assert cured.hit_tokens == dense.hit_tokens + again.tokens_lost


def test_in_a_pool_with_room_the_densest_interval_is_advised(lab: Labs, tmp_path: Path) -> None:
    before = analyzed(lab[OLD], two_prompts(0, 400), tmp_path / "before.jsonl")
    finding = finding_of("shifted-boundary", before)
    assert advised(finding.fix) == 1600
    assert "would keep up to" not in finding.fix
    after = analyzed(lab[OLD], two_prompts(1600, 400), tmp_path / "after.jsonl")
    assert after.hit_tokens >= before.hit_tokens + finding.tokens_lost


def test_the_findings_on_routing_say_the_same(lab: Labs, tmp_path: Path) -> None:
    """What was held elsewhere lacked its states there too; what another replica would have hit was lost otherwise."""
    before = analyzed(lab[OLD], two_prompts(0, 40), tmp_path / "before.jsonl")
    held, routing = finding_of("held-elsewhere", before), finding_of("routing", before)
    assert "no other replica would have hit more in these lookups" in held.fix
    assert "groups 0-2 (mamba) had no state at 17,600 there" in held.fix
    assert held.fix.endswith("the two together give back up to 27,200")
    # Routing by itself gives nothing, so it is not among what gives most back.
    assert held.tokens_regained == 0
    assert all(held.fix != fix for _, fix in before.best_fixes)
    assert "9,600 tokens in 1 lookup; they count as shifted_boundary (9,600)" in routing.summary
    assert before.fleet is not None
    assert (routing.tokens_lost, routing.tokens_regained) == (0, before.fleet.regret_tokens)
    # The comparison has the same figure, and none where there is none.
    dense = analyzed(lab[OLD], two_prompts(1600, 40, replicas=1), tmp_path / "dense.jsonl")
    found = compare(to_object(before), to_object(dense))
    assert found.rules["routing"] == (routing.tokens_regained, None)
    said = render_diff(found)
    assert "gone: routing, 9,600 tokens" in said
    assert "new: evicting-group\n" in said


def test_a_shortened_prefix_is_told_as_one_and_fixes_that_are_one_count_together(lab: Labs, tmp_path: Path) -> None:
    """The end of the prefix went, with the states there; where it now ends there never was one."""
    case = two_prompts(1600, 40, replicas=1)
    case["requests"] = [
        request("long", ("doc", 11910)),
        request("noise", ("other", 25000)),
        request("again", ("doc", 11910)),
    ]
    analysis = analyzed(lab[OLD], case, tmp_path / "s.jsonl")
    assert find(analysis, "again").lost.keys() >= {"evicted", "checkpoint_evicted"}
    finding = finding_of("checkpoint-evicted", analysis)
    assert finding.summary.startswith("the prefix was shortened by an eviction")
    assert "beyond 6,400, and with them the states at 9,600, were evicted" in finding.cause
    assert "groups 0-2 (mamba) never had a state at 6,400" in finding.cause
    evicted = finding_of("evicted", analysis)
    assert evicted.fix == finding.fix
    assert evicted.change == finding.change
    assert analysis.best_fixes == [(evicted.tokens_lost + finding.tokens_lost, finding.fix)]
    assert replace(analysis, findings=[]).best_fixes == []


def test_speculation_points_to_no_finding_that_is_not_there(lab: Labs, tmp_path: Path) -> None:
    """The lab accepts no draft unless it is told to: that is no warning, and not what speculation is worth."""
    for accepted in (0, 2):
        case = shipped("model_case", speculative={**MTP, "accepted_tokens": accepted})
        for each in case["requests"]:
            each["output_tokens"] = 20
        analysis = analyzed(lab[OLD], case, tmp_path / f"{accepted}.jsonl")
        finding = finding_of("speculation-net", analysis)
        assert "speculation-cuts-hits" not in finding.fix
        assert ("no draft was accepted" in finding.fix) == (not accepted)
        assert accepted or finding.severity == "info"


def test_where_no_interval_for_all_fits_the_pool_the_worst_loss_is_ended(lab: Labs, tmp_path: Path) -> None:
    """Two prompts need states at 9,600 and 17,600, which 1,600 alone keeps both."""
    requests = [request("long", ("doc", 11910), times=2), request("other", ("other", 20000), times=2)]
    small = {**two_prompts(0, 40, replicas=1), "requests": requests}
    before = analyzed(lab[OLD], small, tmp_path / "before.jsonl")
    finding = finding_of("shifted-boundary", before)
    assert finding.tokens_lost == 9600 + 17600
    assert (advised(finding.fix), finding.tokens_regained) == (17600, 17600)
    assert ". This gives 17,600 of the lost tokens back: " in finding.fix
    after = analyzed(lab[OLD], {**two_prompts(17600, 40, 1), "requests": requests}, tmp_path / "after.jsonl")
    assert after.hit_tokens - before.hit_tokens == finding.tokens_regained
    roomy = {**two_prompts(0, 400, replicas=1), "requests": requests}
    finding = finding_of("shifted-boundary", analyzed(lab[OLD], roomy, tmp_path / "roomy.jsonl"))
    assert (advised(finding.fix), finding.tokens_regained) == (1600, None)


@pytest.mark.parametrize(
    ("split", "budget", "advised"),
    [
        # Chunks end at 2,048 and at the last multiple of 128; at 1,920 with a limit of as much.
        (128, 2048, 1920),
        # Cut on the groups' own block, nothing is to be advised: 1,920 is where it ends.
        (None, 2048, None),
    ],
)
def test_the_budget_that_is_advised_ends_a_chunk_there(
    lab: Labs, tmp_path: Path, split: int | None, budget: int, advised: int | None
) -> None:
    """With the limit on batched tokens that the fix names, the first repeat hits."""
    settings = {
        "block_size": 640,
        "split_block_size": split,
        "prefix_cache_retention_interval": 0,
        "max_num_batched_tokens": budget,
    }
    case = scenario([request("a", ("doc", 2500), times=2)], HYBRID, **settings)
    worst = analyzed(lab["0.32.0"], case, tmp_path / "before.jsonl")
    fixes = [each.fix for each in worst.findings if each.rule == "not-materialized"]
    found = re.search(r"--max-num-batched-tokens (\d+)", fixes[0]) if fixes else None
    assert (int(found[1]) if found else None) == advised, fixes
    engine = {**case["engine"], "max_num_batched_tokens": advised or budget}
    after = analyzed(lab["0.32.0"], {**case, "engine": engine}, tmp_path / "after.jsonl")
    assert [each.hit_tokens for each in after.lookups] == [0, 1920]


@pytest.mark.parametrize("split", [128, 640])
@pytest.mark.parametrize("kept", ["dense", "wanted", "flag", "variable"])
@pytest.mark.parametrize("lost", [(1280,), (1280, 640)], ids=["all", "some"])
def test_each_part_of_a_chunk_fix_is_a_sentence(split: int, kept: str, lost: tuple[int, ...]) -> None:
    """Which parts there are differs with the server and the lookups; none runs into another."""
    groups = (
        Group(0, "mamba", 640, 0, flagged=False, drops=False, fine_grained=True),
        Group(1, "full_attention", 640, 0, flagged=False, drops=False, fine_grained=True),
    )
    retention, version = "dense" if kept == "dense" else "0", "0.28.0" if kept == "variable" else "0.32.0"
    settings = Settings(
        groups, ((1,), (0,)), 640, 640, 640, split, 0, True, False, True, retention, version, "", 2048, ""
    )
    wanted = [1280] if kept == "wanted" else []
    state = GroupState(0, "mamba", 640, 1280, 0, None, None, "not_materialized", 2048, wanted)
    rows = [
        LookupResult("two", "r", 0, 0, 1, 2500, 0, 0, each, {"not_materialized": each}, [0], [state]) for each in lost
    ]
    fix = fix_not_materialized(Case("not_materialized", settings, rows, rows[0]))
    first, *others = fix.says.split(". ")
    assert first.startswith("make a chunk of a prompt that is computed alone end at 1,280: ")
    assert not fix.says.endswith(".")
    assert ";" not in fix.says.replace("(vLLM 0.28.0; from", "")
    cut = ["This server"] if split == 128 else []
    mask = ["The mask" if kept in ("dense", "wanted") else "For the"]
    some = ["This gives"] if len(lost) > 1 else []
    assert [" ".join(part.split()[:2]) for part in others] == [*cut, *mask, *some]
