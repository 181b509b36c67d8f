"""Why a boundary shifted: each reason on vLLM's own scheduler, every group that lacks the state, and the way back.

Blocks of 64 and chunks of one block, so that every state is computed: what a hit lacks the retention mask refused.
"""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import MTP, request, resent, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find
from analyzers.model import LookupResult
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

Groups = list[dict[str, Any]]

MAMBA: dict[str, Any] = {"kind": "mamba", "layers": 3}
FULL: dict[str, Any] = {"kind": "full_attention"}
WINDOW: dict[str, Any] = {"kind": "sliding_window", "window": 64}
DRAFTER = WINDOW | {"draft": True}
REPLAYED: dict[str, Any] = {"kind": "sliding_window", "window": 128, "replay": True}
ENGINE: dict[str, Any] = {"block_size": 64, "prefix_cache_retention_interval": 0, "max_num_batched_tokens": 64}
UP_TO_29 = ("0.26.0", "0.27.1", "0.28.0", "0.29.0")
WITHOUT_REPLAY = (*UP_TO_29, "0.30.0")


def retained(lab: Labs, version: str, folder: Path, requests: Groups, groups: Groups, **engine: Any) -> LookupResult:
    """Return the result of the last request; dense retention gives back what shifted, and moves no other class."""
    case = scenario(requests, groups, **ENGINE | engine)
    before = analyzed(lab[version], case, folder / "before.jsonl")
    if "shifted_boundary" not in before.lost:
        return before.lookups[-1]
    dense = {**case, "engine": {**case["engine"], "prefix_cache_retention_interval": "dense"}}
    after = analyzed(lab[version], dense, folder / "after.jsonl")
    lost = dict(before.lost)
    tokens = lost.pop("shifted_boundary")
    assert dict(after.lost) == lost
    assert after.hit_tokens - before.hit_tokens == tokens
    return before.lookups[-1]


def dropped(version: str) -> dict[str, int]:
    """Return what 1,000 tokens lose by design: a block to speculation, except where a key covers a token more."""
    return {"tail": 40} if version == "0.33.0" else {"tail": 40, "speculative_drop": 64}


@pytest.mark.parametrize("version", VERSIONS)
def test_speculation(lab: Labs, tmp_path: Path, version: str) -> None:
    """A hit has to end at 896 = 960 - 64; up to 0.29 the mask keeps the states at 960 alone, in every sparse group."""
    repeat = retained(lab, version, tmp_path, resent(1000, 1), [MAMBA, FULL, DRAFTER], speculative=MTP)
    if version in UP_TO_29:
        assert (repeat.hit_tokens, repeat.lost) == (0, dropped(version) | {"shifted_boundary": 896})
        assert (repeat.reason, repeat.needed_boundary, repeat.producer) == ("speculation", 896, "cold")
        assert repeat.limiting_groups == [0, 1, 2, 4]
        assert {repeat.groups[index].wanted for index in repeat.limiting_groups} == {(960,)}
    else:
        assert repeat.lost == dropped(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_drafter_lacks_the_state(lab: Labs, tmp_path: Path, version: str) -> None:
    """The same with a drafter's window as the only sparse group."""
    repeat = retained(lab, version, tmp_path, resent(1000, 1), [FULL, DRAFTER], speculative=MTP)
    if version in UP_TO_29:
        assert (repeat.hit_tokens, repeat.lost) == (0, dropped(version) | {"shifted_boundary": 896})
        assert (repeat.reason, repeat.limiting_groups) == ("draft_group", [1])
    else:
        assert repeat.lost == dropped(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_drafter_s_smaller_blocks_lack_the_state(lab: Labs, tmp_path: Path, version: str) -> None:
    """Blocks of 32 for the drafter: a hit may end at 960 = 992 - 32, and all other groups have that state.

    0.29 keeps none of the drafter's that serves a hit, 0.32 keeps the one of a hit at 896.
    """
    groups = [MAMBA, FULL, DRAFTER | {"block_size": 32}]
    if version in ("0.26.0", "0.27.1"):
        with pytest.raises(LabError, match="must be divisible by hash_block_size"):
            retained(lab, version, tmp_path, resent(1000, 1), groups, speculative=MTP)
        return
    repeat = retained(lab, version, tmp_path, resent(1000, 1), groups, speculative=MTP)
    if version in ("0.28.0", "0.33.0"):
        assert "shifted_boundary" not in repeat.lost
    if version not in ("0.29.0", "0.32.0"):
        return
    hit = 0 if version == "0.29.0" else 896
    assert (repeat.hit_tokens, repeat.needed_boundary) == (hit, 960)
    assert repeat.lost == {"tail": 8, "speculative_drop": 32, "shifted_boundary": 960 - hit}
    assert (repeat.reason, repeat.limiting_groups) == ("draft_group", [4])
    assert {group.state for group in repeat.groups if group.group != 4} == {"stored"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_aligned_prompt(lab: Labs, tmp_path: Path, version: str) -> None:
    """A prompt of 256 = 4 * 64 keeps its state at 192, for a resend; one that goes on from it needs 256."""
    requests = [request("first", ("doc", 256)), request("longer", ("doc", 256), ("own", 100))]
    longer = retained(lab, version, tmp_path, requests, [MAMBA, FULL])
    assert (longer.hit_tokens, longer.lost) == (192, {"cold": 100, "shifted_boundary": 64})
    assert (longer.reason, longer.needed_boundary, longer.producer) == ("aligned_prompt", 256, "first")
    assert longer.limiting_groups == [0, 1, 2]
    assert {longer.groups[index].wanted for index in (0, 1, 2)} == {(192,)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prefix_that_is_shared_up_to_an_earlier_boundary(lab: Labs, tmp_path: Path, version: str) -> None:
    """Of 1,000 tokens another prompt has 700: a hit needs 640, and the first prompt kept its state at 960."""
    requests = [request("parent", ("doc", 1000)), request("child", ("doc", 700), ("own", 100))]
    child = retained(lab, version, tmp_path, requests, [MAMBA, WINDOW, FULL])
    assert (child.hit_tokens, child.lost) == (0, {"cold": 160, "shifted_boundary": 640})
    assert (child.reason, child.needed_boundary, child.producer) == ("shared_prefix", 640, "parent")
    assert child.limiting_groups == [0, 1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_window_that_is_rebuilt(lab: Labs, tmp_path: Path, version: str) -> None:
    """It is not looked up, so it never lacks a state; the other groups that do are named, and it is not.

    Of a hit the window's 128 tokens are computed again: with a window that is cached they are served.
    """
    groups = [REPLAYED, MAMBA, FULL]
    requests = [request("parent", ("doc", 1000)), request("child", ("doc", 700), ("own", 100), times=2)]
    case = scenario(requests, groups, **ENGINE)
    if version in WITHOUT_REPLAY:
        with pytest.raises(LabError, match="this vLLM caches every window"):
            lab[version].run(case, tmp_path / "s.jsonl")
        return
    analysis = analyzed(lab[version], case, tmp_path / "s.jsonl")
    first, second = find(analysis, "child-0"), find(analysis, "child-1")
    assert (first.hit_tokens, first.lost) == (0, {"cold": 160, "shifted_boundary": 640})
    assert (first.reason, first.limiting_groups) == ("shared_prefix", [1, 2, 3])
    assert [group.state for group in first.groups] == ["unknown", "masked", "masked", "masked", "stored"]
    assert (second.predicted_hit_tokens, second.hit_tokens) == (768, 768 - 128)
    assert second.lost == {"tail": 32, "discarded_after_lookup": 128}
    dense = ENGINE | {"prefix_cache_retention_interval": "dense"}
    cached = [REPLAYED | {"replay": False}, MAMBA, FULL]
    before = analyzed(lab[version], scenario(resent(1000, 1), groups, **dense), tmp_path / "replayed.jsonl")
    after = analyzed(lab[version], scenario(resent(1000, 1), cached, **dense), tmp_path / "cached.jsonl")
    assert before.lost == {**after.lost, "discarded_after_lookup": 128}
    assert after.hit_tokens - before.hit_tokens == 128


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in WITHOUT_REPLAY])
def test_a_hit_that_is_no_longer_than_the_window(lab: Labs, tmp_path: Path, version: str) -> None:
    """All of it would be computed again: vLLM throws it away whole."""
    case = scenario(resent(100, 1), [REPLAYED, FULL], block_size=16)
    repeat = find(analyzed(lab[version], case, tmp_path / "s.jsonl"), "repeat")
    assert (repeat.predicted_hit_tokens, repeat.hit_tokens) == (96, 0)
    assert repeat.lost == {"tail": 4, "discarded_after_lookup": 96}
