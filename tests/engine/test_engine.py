"""vLLM's real engine under `otel-cache run`: the processes as vLLM starts them, a tiny model with random weights."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from analyzers.vllm_lab.model import write_model

pytestmark = pytest.mark.vllm
BIN = Path(sys.executable).parent
PROGRAM = Path(__file__).with_name("offline.py")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], Analysis]:
    """Serve the prompt four times; return what vLLM says was cached, and the analysis of the spans."""
    folder = tmp_path_factory.mktemp("engine")
    write_model(folder / "model")
    out = folder / "spans.jsonl"
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [BIN / "otel-cache", "run", "--out", out, "--", sys.executable, PROGRAM, folder / "model"],
        capture_output=True,
        text=True,
        timeout=500,
        env=environ,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cached = [int(found) for found in re.findall(r"^cached (\d+)$", done.stdout, re.MULTILINE)]
    return cached, analyze(open_capture([out]))


def test_hits_are_vllms(served: tuple[list[int], Analysis]) -> None:
    """What vLLM's own API says, send by send, and what the evidence predicts."""
    cached, analysis = served
    assert cached == [0, 0, 2560, 2560]
    assert [lookup.hit_tokens for lookup in analysis.lookups] == cached
    assert [lookup.predicted_hit_tokens for lookup in analysis.lookups] == cached
    assert analysis.coverage.missing_records == 0


def test_the_second_send_is_explained(served: tuple[list[int], Analysis]) -> None:
    """Blocks of 640 tokens: attention has 2,560 = 4 * 640, but the chunk ended at 2,944 and left no state there."""
    second = served[1].lookups[1]
    assert second.lost == {"tail": 440, "not_materialized": 2560}
    assert (second.needed_boundary, second.limiting_groups) == (2560, [0, 1, 2])
    assert {(group.state, group.chunk_end) for group in second.groups[:3]} == {("not_materialized", 2944)}
    assert "no chunk ended there" in second.cause
    assert "2,944" in second.cause
    (sequence,) = served[1].sequences
    assert (sequence.pattern, sequence.shape) == ("miss-miss-hit", "identical")
