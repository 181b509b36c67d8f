"""Public reports of lost hits, rebuilt on vLLM's own scheduler in the version that had them: each gets its verdict.

Where other versions do the same they get the same verdict.
"""

import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, MTP, request, resent, scenario
from vllm_versions import VERSIONS, lane_folder

from analysis.checks import analyzed, find, hits, losses_found
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from analyzers.vllm_lab.run import LabWorker
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm


def losses(analysis: Analysis, *names: str) -> list[dict[str, int]]:
    """Return what these requests lost."""
    return [dict(find(analysis, name).lost) for name in names]


@pytest.mark.parametrize(
    ("tokens", "retention", "expected", "reason"),
    [
        # 4 blocks, the last token has to be computed: 4,800; a block is dropped: 3,200. The only chunk ended at 6,400.
        (6400, "default", {"tail": 1600, "speculative_drop": 1600, "not_materialized": 3200}, "speculation"),
        # 4 blocks and 892 tokens; a block is dropped: 4,800, where a chunk ended and the mask wanted 6,400.
        (7292, 0, {"tail": 892, "speculative_drop": 1600, "shifted_boundary": 4800}, "speculation"),
    ],
)
def test_blocks_of_1600_with_speculation(
    lab: Labs, tmp_path: Path, tokens: int, retention: Any, expected: dict[str, int], reason: str
) -> None:
    case = scenario(resent(tokens), HYBRID, block_size=1600, speculative=MTP, prefix_cache_retention_interval=retention)
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "s.jsonl")
    assert losses(analysis, "repeat-0") == [expected]
    assert find(analysis, "repeat-0").reason == reason
    assert find(analysis, "repeat-1").hit_tokens > 0
    assert [sequence.pattern for sequence in analysis.sequences] == ["miss-miss-hit"]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != "0.33.0"])
@pytest.mark.parametrize(("tokens", "hit"), [(3784, 0), (15019, 12864)])
def test_blocks_of_2144_with_speculation(lab: Labs, tmp_path: Path, version: str, tokens: int, hit: int) -> None:
    """The drop of a block is by design, not a fault: nothing to find, even where it takes the whole hit.

    0.33 drops nothing.
    """
    case = scenario(resent(tokens), HYBRID, block_size=2144, speculative=MTP)
    analysis = analyzed(lab[version], case, tmp_path / "s.jsonl")
    assert hits(analysis) == [0, hit, hit]
    for lost in losses(analysis, "repeat-0", "repeat-1"):
        assert lost == {"tail": tokens - hit - 2144, "speculative_drop": 2144}
    assert not losses_found(analysis)


def test_a_prompt_that_fills_its_blocks(lab: Labs, tmp_path: Path) -> None:
    """128 tokens in blocks of 32: a resend can use 96, and the one chunk ended at 128."""
    case = scenario(resent(128), HYBRID, block_size=32)
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "s.jsonl")
    assert losses(analysis, "repeat-0") == [{"tail": 32, "not_materialized": 96}]
    second = find(analysis, "repeat-0")
    assert (second.reason, second.needed_boundary) == ("aligned_prompt", 96)
    assert {(group.chunk_start, group.chunk_end) for group in second.groups[:3]} == {(0, 128)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("tokens", "hit"), [(2015, 0), (8015, 7168), (32015, 28672)])
def test_blocks_of_3584(lab: Labs, tmp_path: Path, version: str, tokens: int, hit: int) -> None:
    case = scenario(resent(tokens), HYBRID, block_size=3584)
    analysis = analyzed(lab[version], case, tmp_path / "s.jsonl")
    assert hits(analysis) == [0, hit, hit]
    expected = {"tail": tokens - hit} if hit else {"alignment": 2015}
    assert losses(analysis, "repeat-0", "repeat-1") == [expected, expected]
    if not hit:
        (finding,) = losses_found(analysis)
        assert (finding.rule, find(analysis, "repeat-0").reason) == ("alignment", "below_minimum")
        assert "3,584" in finding.fix


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shared_prefix_below_a_block_is_no_cold_miss(lab: Labs, tmp_path: Path, version: str) -> None:
    """1,900 shared and 400 own tokens over blocks of 2,096; the common grid tells 1,792 = 7 * 256 of the 1,900."""
    requests = [request("one", ("doc", 1900), ("x", 400)), request("two", ("doc", 1900), ("y", 400))]
    analysis = analyzed(lab[version], scenario(requests, HYBRID, block_size=2096), tmp_path / "s.jsonl")
    assert losses(analysis, "two") == [{"cold": 508, "alignment": 1792}]
    assert "2,096" in analysis.findings[0].fix


@pytest.mark.parametrize("draft", ["full_attention", "sliding_window"])
def test_speculation_halves_the_hit(lab: Labs, tmp_path: Path, draft: str) -> None:
    """A drop of 128 tokens, and a scheduler block of 16,384: 32,768 - 128 leaves only 16,384.

    The prompt ends within 128 tokens after 32,768, so that there is no block beyond to drop instead.
    """
    group: dict[str, Any] = {"kind": draft, "block_size": 128}
    if draft == "sliding_window":
        group["window"] = 128
    groups = [{"kind": "full_attention", "block_size": 16384}, group]
    engine: dict[str, Any] = {"block_size": 128, "num_gpu_blocks": 4000, "max_num_batched_tokens": 16384}
    plain = analyzed(lab["0.28.0"], scenario(resent(32800), groups, **engine), tmp_path / "plain.jsonl")
    assert hits(plain) == [0, 32768, 32768]
    drafted = [groups[0], group | {"draft": True}]
    case = scenario(resent(32800), drafted, speculative=MTP, **engine)
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "drafted.jsonl")
    assert hits(analysis) == [0, 16384, 16384]
    expected = {"tail": 32, "speculative_drop": 128, "alignment": 16256}
    assert losses(analysis, "repeat-0", "repeat-1") == [expected, expected]
    finding = next(finding for finding in analysis.findings if finding.rule == "speculation-cuts-hits")
    assert finding.tokens_lost == 2 * 16256
    for word in ("32,768", "16,384", "128"):
        assert word in finding.cause


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_two_conversations_that_alternate_in_a_pool_for_less(lab: Labs, tmp_path: Path, layout: str) -> None:
    """60,000 tokens each, and room for 1.9 of them: what each turn needs the other has pushed out, in all groups."""
    turns = [request(f"{name}-{turn}", (name, 60000 + 200 * turn)) for turn in range(3) for name in "ab"]
    # A conversation takes 3,750 blocks of 16; or 38 of attention and, in each Mamba group, about two states.
    sizes = {"full": (FULL, 16, 7125), "hybrid": (HYBRID, 1600, 83)}
    groups, block, pool = sizes[layout]
    case = scenario(turns, groups, block_size=block, num_gpu_blocks=pool)
    analysis = analyzed(lab["0.28.0"], case, tmp_path / "small.jsonl")
    evicted = {"evicted", "checkpoint_evicted"}
    for name in ("a-1", "b-1", "a-2", "b-2"):
        lookup = find(analysis, name)
        assert {cls for cls in lookup.lost if cls not in ("cold", "tail")} <= evicted
        facts = [fact for fact in lookup.facts if fact.cls in evicted and not fact.data.get("also")]
        assert {group for fact in facts for group in fact.data["groups"]} == set(range(len(lookup.groups)))
        other = f"b-{int(name[-1]) - 1}" if name[0] == "a" else f"a-{name[-1]}"
        assert {fact.data["evictor"] for fact in facts} == {other}
    assert {finding.rule for finding in losses_found(analysis)} <= {"evicted", "checkpoint-evicted"}
    large = scenario(turns, groups, block_size=block, num_gpu_blocks=4 * pool)
    assert not set(analyzed(lab["0.28.0"], large, tmp_path / "large.jsonl").lost) & evicted


@pytest.mark.parametrize("version", VERSIONS)
def test_the_checkpoint_lies_in_tokens_of_its_own(lab: Labs, tmp_path: Path, version: str) -> None:
    """1,500 shared and 700 own tokens, blocks of 528: a hit needs 1,056, the only chunk ended at 2,112."""
    requests = [request(name, ("doc", 1500), (name, 700)) for name in ("one", "two", "three")]
    analysis = analyzed(lab[version], scenario(requests, HYBRID, block_size=528), tmp_path / "s.jsonl")
    assert hits(analysis) == [0, 0, 1056]
    two = find(analysis, "two")
    # The common grid tells 1,280 = 5 * 256 of the 1,500 shared tokens.
    assert two.lost == {"cold": 920, "tail": 224, "not_materialized": 1056}
    assert (two.reason, two.limiting_groups, two.producer) == ("shared_prefix", [0, 1, 2], "one")
    assert {(group.chunk_start, group.chunk_end) for group in two.groups[:3]} == {(0, 2112)}


def test_turns_that_rotate_over_four_replicas(lab: Labs, tmp_path: Path) -> None:
    """Each of the first four turns finds a replica that has never seen the conversation."""
    turns = [request(f"turn-{turn}", ("talk", 2000 + 400 * turn)) for turn in range(6)]
    analysis = analyzed(lab["0.28.0"], scenario(turns, FULL, replicas=4), tmp_path / "four.jsonl")
    for turn in range(1, 4):
        lookup = find(analysis, f"turn-{turn}")
        assert lookup.lost == {"cold": 400, "held_elsewhere": 1600 + 400 * turn}
        (fact,) = lookup.facts
        assert fact.data["replicas"] == [f"replica-{turn - 1}"]
        assert lookup.regret_tokens == lookup.lost["held_elsewhere"]
        assert lookup.best_replicas == [f"replica-{turn - 1}"]
    # The fifth turn is back where the first one was.
    assert find(analysis, "turn-4").lost == {"cold": 400, "held_elsewhere": 3200 - 2000}
    one = analyzed(lab["0.28.0"], scenario(turns, FULL), tmp_path / "one.jsonl")
    assert "held_elsewhere" not in one.lost
    assert one.hit_tokens == analysis.hit_tokens + analysis.lost["held_elsewhere"]


def kill_once_told(child: subprocess.Popen[Any], path: Path, told: bytes) -> None:
    """Kill `child` when the spans in the file speak of `told`, at the latest after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and told in path.read_bytes()):
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)


def test_a_replica_killed_in_mid_run(tmp_path: Path) -> None:
    """SIGKILL: what the old life held is lost to `reset`, and the report names it; nothing else changes."""
    first = [request("cold", ("doc", 4000)), request("long", ("other", 100_000), output_tokens=20_000)]
    second = [request("again", ("doc", 4000)), request("warm", ("doc", 4000))]
    engine: dict[str, Any] = {"num_gpu_blocks": 20_000, "max_num_batched_tokens": 512}
    worker = LabWorker(lane_folder("0.28.0"), instrument=True)
    try:
        worker.run(scenario([request("start", ("x", 100))], **engine), tmp_path / "start.jsonl")
        child = worker._child
        assert child is not None
        killer = threading.Thread(target=kill_once_told, args=(child, tmp_path / "first.jsonl", b'"long"'))
        killer.start()
        with pytest.raises(LabError, match="-9"):
            worker.run(scenario(first, **engine), tmp_path / "first.jsonl")
        killer.join()
        worker.run(scenario(second, **engine), tmp_path / "second.jsonl")
    finally:
        worker.close()
    analysis = analyze(open_capture([tmp_path / "first.jsonl", tmp_path / "second.jsonl"]))
    again = find(analysis, "again")
    assert (again.hit_tokens, again.lost) == (0, {"tail": 16, "reset": 3984})
    (fact,) = again.facts
    assert (fact.cls, fact.data["replica"]) == ("reset", "replica-0")
    assert find(analysis, "warm").hit_tokens == 3984
    assert "reset" in {finding.rule for finding in analysis.findings}
