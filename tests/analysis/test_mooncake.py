"""A production trace in Mooncake's format, replayed on vLLM's own scheduler: the counts of the file come out.

The trace is no part of the project; OTEL_CACHE_MOONCAKE names it. Expected values are counted from the file: a block
of 512 tokens is served if its id, which stands for all ids before it too, was on an earlier line; the last token of a
prompt is always computed.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Labs

from analyzers.analysis import analyze
from analyzers.model import Analysis, Capture
from analyzers.readers import open_capture
from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.workload import load_workload

pytestmark = [pytest.mark.vllm, pytest.mark.mooncake, pytest.mark.timeout(900)]

VERSION = "0.32.0"
BLOCK = 512
LIMITED = 1600
"""Requests of the runs that need not be whole."""

Line = dict[str, Any]


@pytest.fixture(scope="module")
def trace() -> list[Line]:
    """Return the lines of the trace."""
    return [json.loads(line) for line in Path(os.environ["OTEL_CACHE_MOONCAKE"]).read_text().splitlines()]


def servable(lines: Sequence[Line]) -> int:
    """Count the tokens that an unlimited cache serves, one request after the other."""
    seen: set[int] = set()
    tokens = 0
    for line in lines:
        ids = line["hash_ids"]
        leading = next((index for index, each in enumerate(ids) if each not in seen), len(ids))
        tokens += BLOCK * min(leading, (line["input_length"] - 1) // BLOCK)
        # A block that is not full is never stored.
        seen.update(ids[: line["input_length"] // BLOCK])
    return tokens


def blocks(lines: Sequence[Line]) -> int:
    """Count the distinct blocks that are full."""
    return len({each for line in lines for each in line["hash_ids"][: line["input_length"] // BLOCK]})


Run = Callable[..., tuple[LabResult, Capture]]


@pytest.fixture
def run(lab: Labs, tmp_path: Path) -> Run:
    """Return what runs lines on an engine, and reads what was recorded."""

    def run_lines(lines: Sequence[Line], pool: int, **file: Any) -> tuple[LabResult, Capture]:
        workload, engine, out = tmp_path / "trace.jsonl", tmp_path / "engine.yaml", tmp_path / "spans.jsonl"
        workload.write_text("".join(json.dumps(line) + "\n" for line in lines))
        settings = {
            "block_size": BLOCK, "num_gpu_blocks": pool, "max_num_batched_tokens": 131072,
            "groups": [{"kind": "full_attention"}],
        }  # fmt: skip
        engine.write_text(yaml.safe_dump({"engine": settings, "output_tokens": 1, **file}))
        said = lab[VERSION].run(load_workload(workload, engine), out)
        return said, open_capture([out])

    return run_lines


def holds(analysis: Analysis, said: LabResult, lines: Sequence[Line]) -> None:
    """Check that every token is accounted for and every hit was predicted."""
    assert analysis.coverage.missing_records == 0
    assert analysis.prompt_tokens == sum(line["input_length"] for line in lines)
    assert analysis.hit_tokens + sum(analysis.lost.values()) == analysis.prompt_tokens
    assert analysis.hit_tokens == sum(said.hits)
    assert not {"unknown", "unexplained"} & set(analysis.lost)


def test_the_whole_trace_in_an_unlimited_pool(trace: list[Line], run: Run) -> None:
    """What the file says can be served is served, and the rest is `cold` and `tail`; the analysis takes seconds."""
    said, capture = run(trace, 200_000)
    begin = time.process_time()
    analysis = analyze(capture)
    taken = time.process_time() - begin
    holds(analysis, said, trace)
    assert (analysis.hit_tokens, analysis.prompt_tokens) == (54_063_104, 144_793_823)
    assert analysis.hit_tokens == servable(trace)
    assert set(analysis.lost) == {"cold", "tail"}
    assert not analysis.findings
    assert taken < 60


def test_a_tenth_of_the_pool(trace: list[Line], run: Run) -> None:
    """What is missing to the unlimited pool's hits was evicted."""
    lines = trace[:LIMITED]
    said, capture = run(lines, blocks(lines) // 10)
    analysis = analyze(capture)
    holds(analysis, said, lines)
    assert set(analysis.lost) == {"cold", "tail", "evicted"}
    assert analysis.hit_tokens + analysis.lost["evicted"] == servable(lines)
    assert analysis.lost["evicted"] > 0
    (pool,) = analysis.capacity
    assert pool.groups[0].evicted > 0


@pytest.mark.parametrize("routing", ["round_robin", "random", "sticky_prefix", "sticky_conversation"])
def test_four_replicas(trace: list[Line], run: Run, routing: str) -> None:
    """What is missing to one replica's hits is held elsewhere; sticky routing loses less, as was said it would."""
    lines = trace[: LIMITED // 2]
    said, capture = run(lines, 50_000, replicas=4, routing=routing)
    analysis = analyze(capture)
    holds(analysis, said, lines)
    assert set(analysis.lost) <= {"cold", "tail", "held_elsewhere"}
    assert analysis.hit_tokens + analysis.lost.get("held_elsewhere", 0) == servable(lines)
    fleet = analysis.fleet
    assert fleet is not None
    assert fleet.sticky_prefix_tokens == fleet.regret_tokens == analysis.lost.get("held_elsewhere", 0)
    assert fleet.sticky_conversation_tokens <= fleet.regret_tokens
    share = fleet.regret_tokens / servable(lines)
    assert share < 0.15 if routing.startswith("sticky") else share > 0.3


def test_a_trunk_that_all_share_costs_nothing(trace: list[Line], run: Run) -> None:
    """The same requests without the first 512 tokens that all of them share are hardly faster to analyze.

    What nobody has named is looked for in no cache; each request looks for the trunk once, whoever has had it before.
    """
    lines = trace[: LIMITED // 2]
    assert {line["hash_ids"][0] for line in lines} == {0}
    fresh = 1 + max(each for line in trace for each in line["hash_ids"])
    apart = [line | {"hash_ids": [fresh + n, *line["hash_ids"][1:]]} for n, line in enumerate(lines)]
    times = []
    for some in (lines, apart):
        _, capture = run(some, 50_000)
        best = 1e9
        for _ in range(3):
            begin = time.process_time()
            analysis = analyze(capture)
            best = min(best, time.process_time() - begin)
        times.append(best)
        assert len(analysis.lookups) == len(lines)
    assert times[0] < 2.5 * times[1]
