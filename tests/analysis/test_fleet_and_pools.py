"""Fleets and block pools on vLLM's own scheduler: regret, routing, patterns, the drafter's share, what stays warm."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, MTP, request, scenario, shipped

from analysis.checks import analyzed, find
from analyzers.analysis import analyze
from analyzers.choice import Choice
from analyzers.model import Analysis
from analyzers.readers import open_capture

pytestmark = pytest.mark.vllm


def rules(analysis: Analysis) -> set[str]:
    """Return the rules that found something."""
    return {finding.rule for finding in analysis.findings}


def conversations(turns: int) -> list[dict[str, Any]]:
    """Return three conversations, a turn of each in turn; a turn holds the one before it and its answer."""
    requests = []
    for turn in range(turns):
        for name in "abc":
            prompt = [("system", 64)]
            for earlier in range(turn):
                prompt += [(f"{name}{earlier}", 400), (f"output:{name}-{earlier}", 40)]
            requests.append(request(f"{name}-{turn}", *prompt, (f"{name}{turn}", 400), output_tokens=40))
    return requests


def test_regret_and_what_routing_would_have_saved(lab: Labs, tmp_path: Path) -> None:
    """Round robin over two replicas; one replica hits what the regret and the hits sum up to."""
    requests = conversations(4)
    two = analyzed(lab["0.32.0"], scenario(requests, FULL, replicas=2), tmp_path / "two.jsonl")
    one = analyzed(lab["0.32.0"], scenario(requests, FULL), tmp_path / "one.jsonl")
    assert one.fleet is None
    fleet = two.fleet
    assert fleet is not None
    assert fleet.regret_tokens == sum(lookup.regret_tokens for lookup in two.lookups) > 0
    assert fleet.regret_tokens == two.lost["held_elsewhere"] == one.hit_tokens - two.hit_tokens
    assert fleet.sticky_prefix_tokens == fleet.regret_tokens
    # Each turn but the first goes on from one that the other replica had, or this one two turns before.
    assert 0 < fleet.sticky_conversation_tokens <= fleet.regret_tokens
    assert sum(tokens for _, tokens in fleet.regret_by_family) == fleet.regret_tokens
    assert fleet.stored_tokens > fleet.distinct_tokens > 0
    assert "routing" in rules(two)
    funnel = two.funnel
    assert funnel["prompt"] == two.prompt_tokens
    assert funnel["held_somewhere"] - funnel["held_here"] == two.lost["held_elsewhere"]
    assert funnel["served"] == two.hit_tokens
    assert list(funnel.values()) == sorted(funnel.values(), reverse=True)


def test_a_conversation_is_one_sequence(lab: Labs, tmp_path: Path) -> None:
    analysis = analyzed(lab["0.32.0"], scenario(conversations(3), FULL), tmp_path / "s.jsonl")
    talks = [sequence for sequence in analysis.sequences if sequence.shape == "conversation"]
    assert sorted(list(sequence.requests) for sequence in talks) == [[f"{n}-{t}" for t in range(3)] for n in "abc"]
    assert {lookup.family for lookup in analysis.lookups} == {"a-0", "b-0", "c-0"}
    (pool,) = analysis.capacity
    assert pool.warm == 3
    assert len(pool.longest) == 2


def test_once_per_replica(lab: Labs, tmp_path: Path) -> None:
    """The model case on two replicas: each pays its own cold miss and its own junction."""
    case = shipped("model_case") | {"replicas": 2, "requests": [request("r", ("doc", 11910), times=8)]}
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "s.jsonl")
    assert [lookup.hit_tokens for lookup in analysis.lookups] == [0, 0, 0, 0, 9600, 9600, 9600, 9600]
    across = analysis.sequences[0]
    assert (across.pattern, len(set(across.replicas))) == ("once per replica", 2)
    assert [sequence.pattern for sequence in analysis.sequences[1:]] == ["miss-miss-hit"] * 2
    assert find(analysis, "r-1").lost["held_elsewhere"] > 0
    assert find(analysis, "r-2").lost["shifted_boundary"] == 9600


def test_patterns_have_names(lab: Labs, tmp_path: Path) -> None:
    """A pool for one prompt: the other pushes all of the first out, and the first comes back."""
    requests = [request("a", ("a", 1601)), request("a2", ("a", 1601)), request("b", ("b", 1601)),
                request("a3", ("a", 1601)), request("a4", ("a", 1601))]  # fmt: skip
    analysis = analyzed(lab["0.32.0"], scenario(requests, FULL, num_gpu_blocks=102), tmp_path / "b.jsonl")
    assert [sequence.pattern for sequence in analysis.sequences if "a2" in sequence.requests] == ["miss-hit-miss-hit"]


def test_the_drafter_that_eats_the_pool_shows(lab: Labs, tmp_path: Path) -> None:
    """A drafter's group in blocks of 16 beside one in blocks of 1,600: 100 blocks for each of the model's."""
    groups = [
        {"kind": "full_attention", "block_size": 1600},
        {"kind": "full_attention", "block_size": 16, "draft": True},
    ]
    case = scenario([request("a", ("a", 11910), times=2)], groups, speculative=MTP, num_gpu_blocks=2000)
    analysis = analyzed(lab["0.32.0"], case, tmp_path / "s.jsonl")
    (pool,) = analysis.capacity
    model, drafter = pool.groups
    assert (model.drafter, drafter.drafter) == (False, True)
    # 11,910 tokens: 7 blocks of 1,600 and 744 of 16, 7 of them beyond the last multiple of 1,600.
    assert (model.peak_blocks, model.stored) == (7, 7)
    assert drafter.share == drafter.peak_blocks / (7 + drafter.peak_blocks) > 0.98
    assert "drafter-share" in rules(analysis)


def test_pools_that_evict(lab: Labs, tmp_path: Path) -> None:
    """What went, from which group, how old it was, and how long it was until it was missed."""
    requests = [request(name, (name[0], 1601)) for name in ("a", "b", "a2", "b2")]
    analysis = analyzed(lab["0.32.0"], scenario(requests, FULL, num_gpu_blocks=150), tmp_path / "s.jsonl")
    (pool,) = analysis.capacity
    (group,) = pool.groups
    assert pool.num_blocks == 150
    assert 0 < group.evicted < group.stored
    assert group.peak_blocks <= 149
    assert group.age_ms is not None and group.age_ms[0] >= 0
    assert pool.reuse_gap_ms is not None and pool.reuse_gap_ms[0] > 0
    assert pool.occupancy[0][1] == (0,)
    assert max(blocks for _, (blocks,) in pool.occupancy) <= group.peak_blocks
    fact = next(fact for fact in find(analysis, "a2").facts if fact.cls == "evicted")
    assert (fact.data["evictor"], fact.data["groups"]) == ("b", [0])
    assert fact.data["before_ms"] > 0
    assert fact.data["idle_ms"] >= 0


def test_a_choice_of_lookups(lab: Labs, tmp_path: Path) -> None:
    """By replica, family and time; causes still come from what is not chosen."""
    path = tmp_path / "s.jsonl"
    lab["0.32.0"].run(scenario(conversations(3), FULL, replicas=2), path)
    capture = open_capture([path])
    whole = analyze(capture)
    one = analyze(capture, Choice(replica="replica-1"))
    assert {lookup.replica for lookup in one.lookups} == {"replica-1"}
    assert [lookup for lookup in whole.lookups if lookup.replica == "replica-1"] == list(one.lookups)
    family = analyze(capture, Choice(family="b-1"))
    assert {lookup.request_id for lookup in family.lookups} == {"b-0", "b-1", "b-2"}
    middle = whole.lookups[4].time
    late, early = analyze(capture, Choice(since=middle)), analyze(capture, Choice(until=middle - 1))
    assert list(early.lookups) + list(late.lookups) == list(whole.lookups)
    assert early.lost.get("cold", 0) + late.lost.get("cold", 0) == whole.lost["cold"]


def test_speculation_is_weighed(lab: Labs, tmp_path: Path) -> None:
    """Drafts that are always right against the block that each hit loses: both sides in seconds, as ranges."""
    speculative = MTP | {"accepted_tokens": 2}
    requests = [request("r", ("doc", 7300), output_tokens=60, times=4)]
    case = scenario(requests, HYBRID, block_size=1600, speculative=speculative)
    analysis = analyzed(lab["0.32.0"], case, tmp_path / "s.jsonl")
    finding = next(finding for finding in analysis.findings if finding.rule == "speculation-net")
    assert finding.evidence["accepted"] == finding.evidence["drafted"] > 0
    prefill, decode = finding.evidence["prefill_seconds"], finding.evidence["decode_seconds_saved"]
    assert 0 < prefill[0] <= prefill[1]
    assert 0 < decode[0] <= decode[1]
    assert analysis.prefill_seconds is not None
