"""Layouts whose blocks have a multiple in common, drafters' groups, and blocks of every size, on every version."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import HYBRID, MTP, request, resent, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

REFUSE = ("0.26.0", "0.27.1")
"""Versions that take no Mamba group beside smaller blocks."""
MULTIPLES = [
    {"kind": "full_attention", "block_size": 16},
    {"kind": "sliding_window", "block_size": 64, "window": 128},
    {"kind": "mamba", "block_size": 1600},
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("speculative", [False, True])
def test_blocks_of_16_64_and_1600(lab: Labs, tmp_path: Path, version: str, speculative: bool) -> None:
    """Resends, a divergence before and one after a boundary, in a pool that holds them and in one that does not."""
    requests = [
        *resent(5000),
        request("before", ("doc", 3190), ("x", 700)),
        request("after", ("doc", 3210), ("y", 700), times=2),
        request("last", ("doc", 5000)),
    ]
    # A prompt takes 313 blocks of 16 and 79 of 64 while it is computed.
    for pool in (4000, 420):
        engine: dict[str, Any] = {"num_gpu_blocks": pool, "speculative": MTP if speculative else None}
        case, out = scenario(requests, MULTIPLES, **engine), tmp_path / f"{pool}.jsonl"
        if version in REFUSE:
            with pytest.raises(LabError, match="must be divisible by hash_block_size"):
                lab[version].run(case, out)
            continue
        analysis = analyzed(lab[version], case, out)
        assert analysis.lost["cold"] >= 5000
        if pool == 4000:
            assert not {"evicted", "checkpoint_evicted"} & set(analysis.lost)
            assert find(analysis, "last").hit_tokens > 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("draft", ["full_attention", "sliding_window"])
def test_a_drafter_with_a_group_of_its_own(lab: Labs, tmp_path: Path, version: str, draft: str) -> None:
    # Two groups of one kind differ in their blocks: otherwise vLLM has one group of them.
    group: dict[str, Any] = {"kind": draft, "draft": True, "block_size": 32}
    if draft == "sliding_window":
        group["window"] = 48
    requests = [*resent(1000), request("leaves", ("doc", 500), ("own", 300), times=2)]
    case = scenario(requests, [{"kind": "full_attention"}, group], speculative=MTP, max_num_batched_tokens=256)
    analysis = analyzed(lab[version], case, tmp_path / "s.jsonl")
    assert find(analysis, "repeat-1").hit_tokens >= 928


@pytest.mark.parametrize(("version", "dropped"), [("0.28.0", 64), ("0.32.0", 64), ("0.33.0", 0)])
def test_a_drafter_s_window_needs_a_block_that_is_not_shared(
    lab: Labs, tmp_path: Path, version: str, dropped: int
) -> None:
    """Of 700 shared tokens 640 = 10 * 64 could be hit; the drafter's window would need the block up to 704 as well.

    So the block is lost to speculation, not to a state that was never made: without speculation it is hit. From 0.33
    on nothing is dropped there: a key covers a token more instead.
    """
    window = {"kind": "sliding_window", "window": 64, "block_size": 64}
    groups = [{"kind": "full_attention", "block_size": 64}, {**window, "window": 256}, window]
    requests = [request("parent", ("doc", 1000)), request("child", ("doc", 700), ("own", 100))]
    engine: dict[str, Any] = {"block_size": 64, "prefix_cache_retention_interval": "dense"}
    drafted = scenario(requests, [*groups[:2], window | {"draft": True}], speculative=MTP, **engine)
    child = find(analyzed(lab[version], drafted, tmp_path / "drafted.jsonl"), "child")
    assert child.hit_tokens == 640 - dropped
    assert child.lost.get("speculative_drop", 0) == dropped
    assert "not_materialized" not in child.lost
    plain = find(analyzed(lab[version], scenario(requests, groups, **engine), tmp_path / "plain.jsonl"), "child")
    assert plain.hit_tokens == 640


@pytest.mark.parametrize("block", [16, 32, 528, 1568, 1600, 2096, 2144, 3584])
def test_blocks_of_every_size(lab: Labs, tmp_path: Path, block: int) -> None:
    """Twice the same prompt of four blocks and a bit: three to four blocks are hit by the third send."""
    case = scenario(resent(4 * block + 5), HYBRID, block_size=block)
    analysis = analyzed(lab["0.33.0"], case, tmp_path / "s.jsonl")
    assert find(analysis, "repeat-1").hit_tokens == 4 * block
