"""Each class is proven: change the one thing that its name blames; its tokens come back and no other class moves."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, MTP, documented, request, resent, scenario, shipped
from vllm_versions import VERSIONS

from analysis.checks import analyzed, hits
from analyzers.model import Analysis

pytestmark = pytest.mark.vllm

Case = Mapping[str, Any]


def with_engine(case: Case, **engine: Any) -> dict[str, Any]:
    """Return `case` with these settings of the engine changed."""
    return {**case, "engine": {**case["engine"], **engine}}


def run_both(lab: Labs, version: str, before: Case, after: Case, folder: Path) -> tuple[Analysis, Analysis]:
    """Return the analyses of a scenario and of the changed one; both send the same requests."""
    one = analyzed(lab[version], before, folder / "before.jsonl")
    other = analyzed(lab[version], after, folder / "after.jsonl")
    assert [lookup.request_id for lookup in one.lookups] == [lookup.request_id for lookup in other.lookups]
    assert one.prompt_tokens == other.prompt_tokens
    return one, other


def only(cls: str, before: Analysis, after: Analysis) -> int:
    """Check that `cls` is gone, that its tokens are served, and that no other class moved; return how many they are."""
    lost = dict(before.lost)
    tokens = lost.pop(cls)
    assert dict(after.lost) == lost
    assert after.hit_tokens - before.hit_tokens == tokens > 0
    return tokens


def test_dense_retention_gives_shifted_boundaries_back(lab: Labs, tmp_path: Path) -> None:
    case = shipped("model_case")
    after = with_engine(case, prefix_cache_retention_interval="dense")
    assert only("shifted_boundary", *run_both(lab, "0.28.0", case, after, tmp_path)) == 9600


@pytest.mark.parametrize("version", VERSIONS)
def test_chunks_that_end_on_the_boundary_give_what_was_never_made(lab: Labs, tmp_path: Path, version: str) -> None:
    """With dense retention on both sides: a child leaves at 11,195, so a hit needs 9,600 = 2 * 4,800.

    Chunks of 8,192 tokens end at 8,000 and 11,200: the hit ends at 8,000, and 1,600 tokens were never made.
    """
    requests = [request("parent", ("doc", 11910)), request("child", ("doc", 11195), ("q", 500))]
    engine: dict[str, Any] = {"block_size": 1600, "prefix_cache_retention_interval": "dense"}
    case = scenario(requests, HYBRID, max_num_batched_tokens=8192, **engine)
    before, after = run_both(lab, version, case, with_engine(case, max_num_batched_tokens=4800), tmp_path)
    assert only("not_materialized", before, after) == 1600
    assert (hits(before), hits(after)) == ([0, 8000], [0, 9600])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unlimited_pool_gives_evicted_prefixes_back(lab: Labs, tmp_path: Path, version: str) -> None:
    requests = [request("a", ("a", 1601)), request("b", ("b", 1601)), request("again", ("a", 1601))]
    case = scenario(requests, FULL, num_gpu_blocks=150)
    before, after = run_both(lab, version, case, with_engine(case, num_gpu_blocks=4000), tmp_path)
    # 201 blocks for both prompts with their last tokens, and 149 to give: the rest went.
    assert only("evicted", before, after) >= 16 * (2 * 101 - 150)


def test_an_unlimited_pool_gives_evicted_checkpoints_back(lab: Labs, tmp_path: Path) -> None:
    """In a pool of 40 blocks the two other prompts push out the Mamba states, and leave the attention blocks."""
    requests = [request(name, (name, 11910)) for name in "abc"] + [request("again", ("a", 11910))]
    case = scenario(requests, HYBRID, block_size=1600, num_gpu_blocks=40)
    before, after = run_both(lab, "0.28.0", case, with_engine(case, num_gpu_blocks=400), tmp_path)
    assert only("checkpoint_evicted", before, after) == 11200


@pytest.mark.parametrize("layout", ["full", "hybrid"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_one_replica_gives_what_others_held_back(lab: Labs, tmp_path: Path, replicas: int, layout: str) -> None:
    """Round robin against one replica, with states where the next turn needs them."""
    groups, block = (FULL, 16) if layout == "full" else (HYBRID, 1600)
    turns = [request(f"t{turn}", ("talk", 3200 * (turn + 1) + 7)) for turn in range(5)]
    engine: dict[str, Any] = {"block_size": block, "num_gpu_blocks": 4000, "max_num_batched_tokens": 3200}
    case = scenario(turns, groups, replicas=replicas, **engine)
    before, after = run_both(lab, "0.32.0", case, {**case, "replicas": 1}, tmp_path)
    only("held_elsewhere", before, after)


@pytest.mark.parametrize("tokens", [11910, 3784])
def test_no_speculation_gives_the_drop_back(lab: Labs, tmp_path: Path, tokens: int) -> None:
    """Dense retention and chunks of a block: every boundary has its states."""
    engine: dict[str, Any] = {
        "block_size": 1600, "prefix_cache_retention_interval": "dense", "max_num_batched_tokens": 1600,
    }  # fmt: skip
    case = scenario(resent(tokens), HYBRID, speculative=MTP, **engine)
    before, after = run_both(lab, "0.32.0", case, with_engine(case, speculative=None), tmp_path)
    assert only("speculative_drop", before, after) == 2 * 1600


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
def test_one_request_at_a_time_gives_what_was_in_flight(lab: Labs, tmp_path: Path, version: str) -> None:
    """The first request's second chunk ends at 9,600 and leaves the second request the rest of the step.

    Of the 11,200 tokens that it could use, 9,600 are registered by then; speculation drops a block either way.
    """
    one, two = request("one", ("a", 11910)), request("two", ("a", 11910))
    case = shipped("model_case", prefix_cache_retention_interval="dense") | {"requests": [one, two | {"with": "one"}]}
    before, after = run_both(lab, version, case, {**case, "requests": [one, two]}, tmp_path)
    assert only("in_flight", before, after) == 1600
    (fact,) = before.lookups[1].facts
    assert (fact.cls, fact.tokens, fact.data["producer"]) == ("in_flight", 1600, "one")
    assert 0 < fact.data["early_ms"] < 60_000


@pytest.mark.parametrize("version", VERSIONS)
def test_an_equal_key_gives_the_difference_back(lab: Labs, tmp_path: Path, version: str) -> None:
    """Salts first, then adapters; one of them made equal each time."""
    for key in ("cache_salt", "lora"):
        apart = [request("a", ("doc", 1000), **{key: "x"}), request("b", ("doc", 1000), **{key: "y"})]
        alike = [request("a", ("doc", 1000), **{key: "x"}), request("b", ("doc", 1000), **{key: "x"})]
        case = scenario(apart)
        before, after = run_both(lab, version, case, {**case, "requests": alike}, tmp_path)
        lost = dict(before.lost)
        # The last 8 tokens are tail where the key is equal, and belong to the difference where it is not.
        assert lost.pop("key_difference") == 1000
        assert dict(after.lost) == lost | {"tail": 8}
        (finding,) = [each for each in before.findings if each.rule == "key-difference"]
        assert finding.tokens_regained == after.hit_tokens - before.hit_tokens == 992


def test_no_restart_gives_a_reset_back(lab: Labs, tmp_path: Path) -> None:
    """The same two requests, with another life of the replica in between."""
    from analyzers.analysis import analyze
    from analyzers.readers import open_capture

    one, two = [request("one", ("doc", 1000))], [request("two", ("doc", 1000))]
    lab["0.32.0"].run(scenario(one), tmp_path / "first.jsonl")
    lab["0.32.0"].run(scenario(two), tmp_path / "second.jsonl")
    before = analyze(open_capture([tmp_path / "first.jsonl", tmp_path / "second.jsonl"]))
    after = analyzed(lab["0.32.0"], scenario(one + two), tmp_path / "whole.jsonl")
    assert only("reset", before, after) == 992


MODEL: dict[str, Any] = {
    "block_size": 1600, "prefix_cache_retention_interval": 0, "speculative": MTP, "num_gpu_blocks": 400,
}  # fmt: skip
SENDS: dict[str, Case] = {
    "documented": documented(),
    "two replicas": scenario([request("doc", ("doc", 11910), times=5)], HYBRID, replicas=2, **MODEL),
    "three replicas": scenario([request("doc", ("doc", 11910), times=7)], HYBRID, replicas=3, **MODEL),
    "evicted": scenario(
        [request("a", ("doc", 11910)), request("noise", ("o", 25000)), request("again", ("doc", 11910), times=2)],
        HYBRID, **MODEL | {"num_gpu_blocks": 40, "prefix_cache_retention_interval": 1600},
    ),
    # Chunks that end at 6,400, which one child needs, take 1,600 from the other, which has hit 8,000.
    "children": scenario(
        [request("parent", ("doc", 11910))]
        + [request(f"c{at}", ("doc", at), (f"q{at}", 500)) for at in (11195, 6500)],
        HYBRID, **MODEL | {"prefix_cache_retention_interval": "dense", "speculative": None},
    ),
}  # fmt: skip
POOL = 4000


def with_settings(case: Case, settings: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return `case` with the settings of a change."""
    changed = {**case, "engine": dict(case["engine"])}
    for name, value in settings:
        if name == "routing":
            changed["replicas"] = 1
        elif name == "kv_cache_memory":
            changed["engine"]["num_gpu_blocks"] = POOL
        else:
            changed["engine"][name] = int(value)
    return changed


@pytest.mark.parametrize("name", SENDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_fix_gives_back_by_itself_what_it_is_listed_with(
    lab: Labs, tmp_path: Path, version: str, name: str
) -> None:
    """Each change is made alone; one that several findings ask for is listed once, with what it gives all of them."""
    case = SENDS[name]
    before = analyzed(lab[version], case, tmp_path / "before.jsonl")
    promised: Counter[tuple[tuple[str, str], ...]] = Counter()
    for finding in before.findings:
        if finding.tokens_lost and finding.severity == "warning":
            assert finding.change is not None
            promised[finding.change.settings] += finding.promise
    listed = {settings: tokens for settings, tokens in promised.items() if tokens}
    assert [tokens for tokens, _ in before.best_fixes] == sorted(listed.values(), reverse=True)
    for settings, tokens in listed.items():
        after = analyzed(lab[version], with_settings(case, settings), tmp_path / "after.jsonl")
        assert after.hit_tokens - before.hit_tokens == tokens, settings


def test_what_routing_gives_back_is_named_first(lab: Labs, tmp_path: Path) -> None:
    """It is what another replica would have hit, whichever class has it; the rest takes states in every group there."""
    before = analyzed(lab["0.28.0"], SENDS["documented"], tmp_path / "before.jsonl")
    interval, routing = before.best_fixes
    assert interval[0] == 17600
    assert interval[1].count("VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1600") == 1
    assert interval[1].endswith("the fix of 2 findings, which give back 9,600 and 8,000")
    assert routing == (
        9600,
        "route requests that share a prefix to the same replica: another one would have hit 9,600 more, of which 8,000 "
        "count as shifted_boundary; with a state in every group there, 17,600",
    )
    # Both together: the interval gives one more request its states, and routing the others theirs.
    changed = with_settings(SENDS["documented"], (("routing", "prefix"), ("prefix_cache_retention_interval", "1600")))
    after = analyzed(lab["0.28.0"], changed, tmp_path / "after.jsonl")
    assert sum(hits(after)[1:]) - sum(hits(before)[1:]) == 9600 + 17600
