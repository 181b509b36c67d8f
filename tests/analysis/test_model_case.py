"""The model case and its relatives on vLLM's own scheduler: hits, causes, sequences and fixes.

11,910 tokens in blocks of 1,600: the last full boundary is 11,200 = 7 * 1,600, so 710 tokens are tail. A group that
drops a block for speculation takes 1,600 more, which leaves 9,600.
"""

from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import request, resent, scenario, shipped
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find, hits, losses_found

pytestmark = pytest.mark.vllm

SPECULATIVE = {"tail": 710, "speculative_drop": 1600}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_model_case(lab: Labs, tmp_path: Path, asynchronous: bool) -> None:
    """0.28: the second send misses because the mask refused the state at the boundary that it needed."""
    analysis = analyzed(lab["0.28.0"], shipped("model_case", async_scheduling=asynchronous), tmp_path / "s.jsonl")
    assert hits(analysis) == [0, 0, 9600, 9600]
    assert find(analysis, "cold").lost == {"cold": 11910}
    assert find(analysis, "repeat-1").lost == SPECULATIVE
    second = find(analysis, "repeat-0")
    assert second.lost == SPECULATIVE | {"shifted_boundary": 9600}
    assert (second.reason, second.needed_boundary, second.limiting_groups) == ("speculation", 9600, [0, 1, 2])
    assert second.producer == "cold"
    for group in second.groups[:3]:
        assert (group.kind, group.state, group.stored_below, group.stored_above) == ("mamba", "masked", None, None)
        assert (list(group.wanted), list(group.unmade), group.chunk_end) == ([11200], [11200], 9600)
    attention = second.groups[3]
    assert (attention.kind, attention.state, attention.hit_tokens) == ("full_attention", "stored", 9600)
    assert (attention.stored_below, attention.stored_above) == (9600, 11200)
    (sequence,) = analysis.sequences
    assert sequence.pattern == "miss-miss-hit"
    assert (sequence.shape, list(sequence.hits)) == ("identical", [0, 0, 9600, 9600])
    (finding,) = losses_found(analysis)
    assert (finding.rule, finding.tokens_lost) == ("shifted-boundary", 9600)
    for word in ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1600", "--prefix-cache-retention-interval 1600", "0.30"):
        assert word in finding.fix
    for word in ("groups 0-2 (mamba)", "9,600", "the retention mask refused", "11,200, where no chunk ended"):
        assert word in second.cause


@pytest.mark.parametrize(
    ("version", "retention", "hit"),
    [("0.28.0", 1600, 9600), ("0.28.0", "dense", 9600), ("0.32.0", 0, 9600), ("0.33.0", 0, 11200)],
)
def test_cures(lab: Labs, tmp_path: Path, version: str, retention: int | str, hit: int) -> None:
    """A retention interval that keeps the boundary, or a later vLLM: the first repeat hits, nothing is avoidable."""
    engine = {"prefix_cache_retention_interval": retention}
    analysis = analyzed(lab[version], shipped("model_case", **engine), tmp_path / "s.jsonl")
    assert hits(analysis) == [0, hit, hit, hit]
    assert not losses_found(analysis)
    assert [sequence.pattern for sequence in analysis.sequences] == ["miss-hit"]
    lost = SPECULATIVE if hit == 9600 else {"tail": 710}
    assert all(lookup.lost == lost for lookup in analysis.lookups[1:])


def test_dense_retention_moves_the_shifted_tokens_to_served(lab: Labs, tmp_path: Path) -> None:
    """Only the shifted tokens change their class."""
    before = analyzed(lab["0.28.0"], shipped("model_case"), tmp_path / "before.jsonl")
    dense = shipped("model_case", prefix_cache_retention_interval="dense")
    after = analyzed(lab["0.28.0"], dense, tmp_path / "after.jsonl")
    lost = dict(before.lost)
    shifted = lost.pop("shifted_boundary")
    assert after.lost == lost
    assert after.hit_tokens - before.hit_tokens == shifted == 9600


def test_a_prompt_that_fills_its_last_block(lab: Labs, tmp_path: Path) -> None:
    """0.28 without speculation, 6,400 = 4 * 1,600 tokens: a resend can use 4,800, where no chunk ended."""
    engine = {"prefix_cache_retention_interval": 0, "speculative": None}
    case = shipped("model_case", **engine) | {"requests": resent(6400)}
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "s.jsonl")
    assert hits(analysis) == [0, 0, 4800]
    second = find(analysis, "repeat-0")
    assert second.lost == {"tail": 1600, "not_materialized": 4800}
    assert (second.needed_boundary, {group.chunk_end for group in second.groups[:3]}) == (4800, {6400})


CHILDREN = [
    request("parent", ("doc", 11910), output_tokens=3),
    *(request(f"child-{n}", ("doc", 11195), (f"question-{n}", 500), output_tokens=3) for n in range(3)),
]


@pytest.mark.parametrize(
    ("engine", "first", "lost"),
    [
        ({}, 0, {"not_materialized": 9600}),
        ({"max_num_batched_tokens": 9600}, 0, {"shifted_boundary": 9600}),
        ({"max_num_batched_tokens": 9600, "prefix_cache_retention_interval": "dense"}, 9600, {}),
    ],
)
def test_children_that_leave_before_the_last_boundary(
    lab: Labs, tmp_path: Path, engine: dict[str, object], first: int, lost: dict[str, int]
) -> None:
    """0.33: no chunk of the parent ended at 9,600; then one did, but the mask refused; then it is kept."""
    case = shipped("model_case", **engine) | {"requests": CHILDREN}
    analysis = analyzed(lab["0.33.0"], case, tmp_path / "s.jsonl")
    assert hits(analysis) == [0, first, 9600, 9600]
    child = find(analysis, "child-0")
    by_design = {cls: tokens for cls, tokens in child.lost.items() if cls in ("cold", "tail")}
    assert child.lost == by_design | lost
    assert sum(by_design.values()) == 11695 - 9600
    if not lost:
        assert not losses_found(analysis)
        return
    assert child.needed_boundary == 9600
    assert child.limiting_groups == [0, 1, 2]
    (sequence,) = analysis.sequences
    assert (sequence.shape, list(sequence.requests)) == ("divergence", ["parent", "child-0", "child-1", "child-2"])
    assert sequence.pattern == "miss-miss-hit"
    if "not_materialized" in lost:
        assert "no chunk ended there" in child.cause
        assert {group.chunk_end for group in child.groups[:3]} == {11200}
        (finding,) = losses_found(analysis)
        assert "--max-num-batched-tokens" in finding.fix
    else:
        assert child.reason == "shared_prefix"


@pytest.mark.parametrize("version", VERSIONS)
def test_eviction(lab: Labs, tmp_path: Path, version: str) -> None:
    """A pool that holds one prompt of two: what the other pushed out is `evicted`, an unlimited pool serves it."""
    requests = [request("a", ("a", 1601)), request("b", ("b", 1601)), request("again", ("a", 1601))]
    small = scenario(requests, block_size=16, num_gpu_blocks=150)
    analysis = analyzed(lab[version], small, tmp_path / "small.jsonl")
    lost = find(analysis, "again").lost
    assert lost["evicted"] + find(analysis, "again").hit_tokens == 1600
    assert lost["evicted"] > 0
    assert [finding.rule for finding in losses_found(analysis)] == ["evicted"]
    large = scenario(requests, block_size=16, num_gpu_blocks=400)
    assert find(analyzed(lab[version], large, tmp_path / "large.jsonl"), "again").hit_tokens == 1600


def test_keys(lab: Labs, tmp_path: Path) -> None:
    """The same tokens under another salt or adapter: `key_difference`, and each key hits itself."""
    requests = [
        request("plain", ("a", 321)),
        request("salted", ("a", 321), cache_salt="pepper", times=2),
        request("adapted", ("a", 321), lora="adapter", times=2),
    ]
    analysis = analyzed(lab["0.32.0"], scenario(requests, block_size=16), tmp_path / "s.jsonl")
    for name in ("salted", "adapted"):
        assert find(analysis, f"{name}-0").lost == {"key_difference": 321}
        assert find(analysis, f"{name}-1").hit_tokens == 320


def test_below_the_smallest_prefix(lab: Labs, tmp_path: Path) -> None:
    """A shared prefix of less than a block: `alignment`, which says the minimum, not `cold`."""
    requests = [request("one", ("a", 1500), ("x", 700)), request("two", ("a", 1500), ("y", 700))]
    analysis = analyzed(lab["0.32.0"], scenario(requests, block_size=1600), tmp_path / "s.jsonl")
    lost = find(analysis, "two").lost
    assert lost["alignment"] + lost["cold"] == 2200
    assert 1500 - 256 < lost["alignment"] <= 1500
    (finding,) = losses_found(analysis)
    assert finding.rule == "alignment"
    assert "1,600" in finding.fix


def test_overlap(lab: Labs, tmp_path: Path) -> None:
    """What another request is still computing is `in_flight`; one request after the other it is served.

    The first request's second chunk ends at 9,600, where its state is cached, and leaves the second request the rest
    of the step: of the 11,200 tokens that a hit could have, 9,600 are registered, and speculation drops 1,600 of them.
    """
    engine = {"prefix_cache_retention_interval": "dense"}
    together = [request("one", ("a", 11910)), request("two", ("a", 11910), **{"with": "one"})]
    case = shipped("model_case", **engine)
    two = find(analyzed(lab["0.32.0"], case | {"requests": together}, tmp_path / "s.jsonl"), "two")
    assert (two.hit_tokens, two.lost) == (8000, {"tail": 710, "in_flight": 1600, "speculative_drop": 1600})
    apart = [request("one", ("a", 11910)), request("two", ("a", 11910))]
    two = find(analyzed(lab["0.32.0"], case | {"requests": apart}, tmp_path / "t.jsonl"), "two")
    assert (two.hit_tokens, two.lost) == (9600, {"tail": 710, "speculative_drop": 1600})


def test_a_waiting_request_is_no_earlier_request(lab: Labs, tmp_path: Path) -> None:
    """A request is looked up again and again while it waits; its own prompt was not in an earlier one.

    The second prompt shares 400 of its 1,035 tokens with the first, which is known to the common grid: 256 to 400.
    """
    engine = {
        "block_size": 160, "prefix_match_unit": 80, "prefix_cache_retention_interval": "dense", "max_num_seqs": 2,
        "max_num_batched_tokens": 213, "num_gpu_blocks": 2000,
        "speculative": {"method": "ngram", "num_speculative_tokens": 2},
    }  # fmt: skip
    groups = [{"kind": "mamba", "layers": 2}, {"kind": "full_attention"}]
    requests = [
        request("one", ("b", 400), ("w", 82), times=2),
        request("two", ("b", 795), ("w", 240), **{"with": "one"}),
    ]
    analysis = analyzed(lab["0.33.0"], scenario(requests, groups, **engine), tmp_path / "s.jsonl")
    two = find(analysis, "two")
    assert two.attempts > 1
    assert 635 <= two.lost["cold"] <= 635 + 256
    assert "not_materialized" not in two.lost


def test_what_lies_inside_a_block_is_not_in_flight(lab: Labs, tmp_path: Path) -> None:
    """A block that is registered at its end only is never registered for a prefix that ends inside it."""
    engine = {
        "block_size": 1600, "prefix_match_unit": 400, "prefix_cache_retention_interval": "dense",
        "max_num_batched_tokens": 8192,
    }  # fmt: skip
    groups = [{"kind": "mamba"}, {"kind": "full_attention"}]
    one, two = request("one", ("doc", 1300), ("u", 701)), request("two", ("doc", 1300), ("v", 4000))
    for together in ({"with": "one"}, {}):
        case = scenario([one, two | together], groups, **engine)
        found = find(analyzed(lab["0.33.0"], case, tmp_path / "s.jsonl"), "two")
        assert (found.hit_tokens, found.lost["alignment"]) == (0, 1200)
        assert "in_flight" not in found.lost
