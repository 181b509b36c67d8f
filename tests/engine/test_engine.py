"""vLLM's real engine under `otel-cache run`: the processes as vLLM starts them, a tiny model with random weights."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from signals.spans import Span, read
from vllm_versions import ENGINES, lane_folder

from analyzers.analysis import analyze
from analyzers.experiments.worksheet import worksheet
from analyzers.model import Analysis
from analyzers.readers import open_capture
from analyzers.settings import read_settings
from analyzers.vllm_lab.model import write_model
from otel_cache.semconv import names

pytestmark = pytest.mark.vllm
BIN = Path(sys.executable).parent
PROGRAM = Path(__file__).with_name("offline.py")


@dataclass(frozen=True)
class Served:
    """A prompt was served four times: what vLLM says was cached, and what was recorded."""

    version: str
    cached: list[int]
    analysis: Analysis
    spans: list[Span]

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Serve the prompt four times with one version of vLLM."""
    folder = tmp_path_factory.mktemp("engine")
    write_model(folder / "model")
    out = folder / "spans.jsonl"
    lane = lane_folder(request.param)
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if lane is not None:
        environ["PYTHONPATH"] = str(lane)
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
    return Served(request.param, cached, analyze(open_capture([out])), read(out))


def test_hits_are_vllms(served: Served) -> None:
    """What vLLM's own API says, send by send, and what the evidence predicts."""
    assert served.cached == [0, 0, 2560, 2560]
    assert [lookup.hit_tokens for lookup in served.analysis.lookups] == served.cached
    assert [lookup.predicted_hit_tokens for lookup in served.analysis.lookups] == served.cached
    assert served.analysis.coverage.missing_records == 0
    assert {span.resource[names.VLLM_VERSION] for span in served.named(names.LOOKUP)} == {served.version}


def test_the_second_send_is_explained(served: Served) -> None:
    """Blocks of 640 tokens: attention has 2,560 = 4 * 640, but the chunk ended at 2,944 and left no state there."""
    second = served.analysis.lookups[1]
    assert second.lost == {"tail": 440, "not_materialized": 2560}
    assert (second.needed_boundary, second.limiting_groups) == (2560, [0, 1, 2])
    assert {(group.state, group.chunk_end) for group in second.groups[:3]} == {("not_materialized", 2944)}
    assert "no chunk ended there" in second.cause
    assert "2,944" in second.cause
    (sequence,) = served.analysis.sequences
    assert (sequence.pattern, sequence.shape) == ("miss-miss-hit", "identical")


def test_chunks_are_cut_as_the_settings_say(served: Served) -> None:
    """On CPUs on multiples of 128: what a prompt leaves is computed with that, and no budget is said to do already."""
    (attributes,) = served.analysis.replicas.values()
    settings = read_settings(attributes, "the replica")
    assert (settings.split_block, {group.block_size for group in settings.groups}) == (128, {640})
    assert list(worksheet(settings, 3000).hits) == served.cached[1:]
    (finding,) = (each for each in served.analysis.findings if each.rule == "not-materialized")
    assert "already" not in finding.fix
    assert "multiples of 128" in finding.fix


def test_requests(served: Served) -> None:
    """The API's ids and the scheduler's, how each request ended, and times that follow one another."""
    requests = served.named(names.REQUEST)
    assert [span[names.REQUEST_EXTERNAL_ID] for span in requests] == ["0", "1", "2", "3"]
    for span in requests:
        assert re.fullmatch(r"\d-[0-9a-f]{8}", span[names.REQUEST_ID])
        assert (span[names.REQUEST_OUTPUT_TOKENS], span[names.REQUEST_FINISH_REASON]) == (3, "length")
        assert span[names.USAGE_CACHE_READ_TOKENS] in served.cached
        times = (span[names.REQUEST_QUEUE_DURATION], span[names.REQUEST_TIME_TO_FIRST_TOKEN])
        assert 0 <= times[0] < times[1] < (span.end - span.start) / 1e9


def test_workers(served: Served) -> None:
    """The worker is a process of its own: each step has the span of its run below it, at its time."""
    steps = {span.id: span for span in served.named(names.STEP)}
    runs = served.named(names.EXECUTE)
    # vLLM warms up with runs of its own, which no scheduler asked for; they are none of these.
    assert sorted(run.parent for run in runs) == sorted(steps)
    engine, worker = (
        {span.resource["process.pid"] for span in steps.values()},
        {run.resource["process.pid"] for run in runs},
    )
    assert len(engine) == len(worker) == 1
    assert engine != worker
    for run in runs:
        step = steps[run.parent]
        assert run.trace == step.trace
        assert run[names.STEP_INDEX] == step[names.STEP_INDEX]
        assert run[names.WORKER_RANK] == 0
        assert run.resource[names.REPLICA_ID] == step.resource[names.REPLICA_ID]
        assert step.start <= run.start < run.end <= step.end
