"""Block pools on vLLM's own scheduler, against arithmetic: who evicts whom, occupancy, ages, what stays warm."""

from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import FULL, MTP, request, scenario

from analysis.checks import analyzed, find
from analyzers.model import Eviction
from analyzers.readers import open_capture
from analyzers.reporters import json, text

pytestmark = pytest.mark.vllm

MILLISECOND = 1_000_000


def test_which_group_evicts_whom(lab: Labs, tmp_path: Path) -> None:
    """A drafter's group in blocks of 16 beside one in blocks of 64, in a pool of 60 blocks and the null block.

    A prompt of 641 tokens takes 11 + 41 blocks, 10 + 40 of them with a key. Once it has ended, the blocks without a key
    go first, then those with one, group by group, each from its end. So of the second prompt, group 0 is given 8
    blocks that nobody had, the 2 without a key and the last of group 0; group 1 the other 9 of group 0 and 32 of its
    own. Of the third, group 0 is given the 2 without a key, the 8 that are left of the first prompt, and the last of
    the second's group 0; group 1 the same as before.
    """
    groups = [
        {"kind": "full_attention", "block_size": 64},
        {"kind": "full_attention", "block_size": 16, "draft": True},
    ]
    requests = [request("a", ("a", 641)), request("b", ("b", 641)), request("a2", ("a", 641))]
    case = scenario(requests, groups, speculative=MTP, num_gpu_blocks=61)
    analysis = analyzed(lab["0.32.0"], case, tmp_path / "s.jsonl")
    (pool,) = analysis.capacity
    assert list(pool.evictions) == [
        Eviction(by=0, of=0, blocks=1 + 1),
        Eviction(by=0, of=1, blocks=8),
        Eviction(by=1, of=0, blocks=9 + 9),
        Eviction(by=1, of=1, blocks=32 + 32),
    ]
    model, drafter = pool.groups
    assert (model.evicted, drafter.evicted) == (20, 72)
    assert (model.pushed_out, drafter.pushed_out) == (10, 82)
    assert (model.pushed_out_share, drafter.pushed_out_share) == (10 / 92, 82 / 92)
    assert [blocks for _, blocks in pool.occupancy] == [(0, 0), (10, 40), (10, 8 + 40)]
    assert (model.share, drafter.share) == (10 / 58, 48 / 58)
    assert (model.segment_blocks, drafter.segment_blocks) == (1, 64 / 16)

    finding = next(finding for finding in analysis.findings if finding.rule == "evicting-group")
    assert finding.evidence["of_groups"] == {0: 18, 1: 64}
    assert "the drafter's group made 89 % of the evictions" in finding.summary
    (fact,) = find(analysis, "a2").facts
    # The first block that the third prompt lacks is the first of group 0; group 1 has its first 8 still.
    assert (fact.cls, fact.data["groups"]) == ("evicted", [0])
    assert (fact.data["evictor"], fact.data["evictor_group"]) == ("b", 1)
    assert "to group 1 of b" in fact.says

    told = [line.split() for line in text.render(analysis).splitlines()]
    assert ["0", "10.9", "%", "2", "8"] in told
    assert ["1*", "89.1", "%", "18", "64"] in told
    written = json.to_object(analysis)["capacity"][0]["evictions"]
    assert written == [{"by": e.by, "of": e.of, "blocks": e.blocks} for e in pool.evictions]


def test_a_checkpoint_that_went_names_both_groups(lab: Labs, tmp_path: Path) -> None:
    """What a hybrid lost in a pool for one prompt: from which groups, to which, and all of it in the matrix."""
    groups = [{"kind": "mamba"}, {"kind": "full_attention"}]
    requests = [request("a", ("a", 700)), request("b", ("b", 700)), request("a2", ("a", 700))]
    case = scenario(
        requests, groups, block_size=160, num_gpu_blocks=12, prefix_cache_retention_interval="dense",
        max_num_batched_tokens=160,
    )  # fmt: skip
    analysis = analyzed(lab["0.32.0"], case, tmp_path / "s.jsonl")
    (pool,) = analysis.capacity
    capture = open_capture([tmp_path / "s.jsonl"])
    keys = sum(len(row) // 8 for row in capture.evicts["fingerprints"])
    assert sum(each.blocks for each in pool.evictions) == sum(group.evicted for group in pool.groups) == keys > 0
    assert None not in {each.by for each in pool.evictions}
    facts = [fact for fact in find(analysis, "a2").facts if fact.cls in ("evicted", "checkpoint_evicted")]
    assert facts
    for fact in facts:
        assert fact.data["evictor_group"] in (0, 1)
        assert set(fact.data["groups"]) <= {0, 1}


def test_ages_and_gaps_are_those_of_the_spans(lab: Labs, tmp_path: Path) -> None:
    """One prompt goes for another and comes back: its age is from its store to its eviction, the gap from there on."""
    requests = [request(name, (name[0], 1601)) for name in ("a", "b", "a2")]
    analysis = analyzed(lab["0.32.0"], scenario(requests, FULL, num_gpu_blocks=150), tmp_path / "s.jsonl")
    (pool,) = analysis.capacity
    (group,) = pool.groups
    capture = open_capture([tmp_path / "s.jsonl"])
    stored = {row["request_id"]: row["start"] for row in capture.stores.iter_rows(named=True)}
    looked_up = {row["request_id"]: row["start"] for row in capture.lookups.iter_rows(named=True)}
    gone = {row["evictor_request_id"]: row["start"] for row in capture.evicts.iter_rows(named=True)}
    assert set(gone) == {"b", "a2"}
    assert group.age_ms is not None and pool.reuse_gap_ms is not None
    # The second evicts blocks of the first, the third, which hits what is left of them, blocks of the second.
    ages = sorted([gone["b"] - stored["a"], gone["a2"] - stored["b"]])
    assert group.age_ms == (pytest.approx(ages[1] / MILLISECOND, abs=1),) * 2
    gap = (looked_up["a2"] - gone["b"]) / MILLISECOND
    assert pool.reuse_gap_ms == (pytest.approx(gap, abs=1),) * 2
    # Of 149 blocks the first prompt leaves 48, and one without a key: the second takes 52 of its 100 away.
    assert [blocks for _, blocks in pool.occupancy] == [(0,), (100,), (100 - 52 + 100,)]
    assert pool.occupancy[0][0] == 0
    assert pool.occupancy[2][0] == pytest.approx((looked_up["a2"] - looked_up["a"]) / MILLISECOND, abs=0.01)


def test_the_two_longest_conversations_that_stay_warm(lab: Labs, tmp_path: Path) -> None:
    """The longest of three loses its end to the two others, which come back to all that they had.

    Of 149 blocks the first takes 101. 41 + 31 more are 24 too many, and one of those that go has no key.
    """
    requests = [
        request(name, (name[0], tokens))
        for name, tokens in (("x", 1601), ("a", 641), ("b", 481), ("a2", 641), ("b2", 481), ("x2", 1601))
    ]
    analysis = analyzed(lab["0.32.0"], scenario(requests, FULL, num_gpu_blocks=150), tmp_path / "s.jsonl")
    assert (find(analysis, "a2").hit_tokens, find(analysis, "b2").hit_tokens) == (640, 480)
    assert find(analysis, "x2").lost["evicted"] > 0
    (pool,) = analysis.capacity
    assert (pool.warm, list(pool.longest)) == (2, [("a", 641), ("b", 481)])
    said = " ".join(text.render(analysis).split())
    assert "2 conversations stayed warm together, the longest a (641 tokens) and b (481 tokens)" in said
    written = json.to_object(analysis)["capacity"][0]["longest"]
    assert written == [{"request_id": "a", "tokens": 641}, {"request_id": "b", "tokens": 481}]
