"""The lab as a command and as a worker, with the instrumentation and the sidecar."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from vllm_versions import VERSIONS, lane_folder

from analyzers.vllm_lab.run import LabWorker
from lab.cases import MTP, request, resent, scenario, shipped
from otel_cache.config import DISABLED_HOOKS
from otel_cache.errors import LabError, ScenarioError
from otel_cache.semconv import names


def command(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `otel-cache lab run` as a user does."""
    script = Path(sys.executable).parent / "otel-cache"
    return subprocess.run(
        [script, "lab", "run", *arguments], capture_output=True, text=True, timeout=300, env=os.environ | environ
    )


def spans(path: Path) -> list[dict[str, Any]]:
    """Return the spans of a file of OTLP JSON lines."""
    return [
        span
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def span_names(path: Path) -> Counter[str]:
    """Count the spans of a file by name."""
    return Counter(span["name"] for span in spans(path))


@pytest.mark.vllm
def test_command(tmp_path: Path) -> None:
    """A shipped scenario on a lane: spans in the file, which is named, nothing on stdout, exit code 0."""
    out = tmp_path / "spans.jsonl"
    lane = lane_folder("0.28.0")
    assert lane is not None
    done = command("model_case", "--out", out, "--vllm", lane)
    count = sum(span_names(out).values())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{count} spans written to {out}\n")
    assert span_names(out)[names.LOOKUP] == 4
    text = out.read_text()
    for sent in ("cold", "repeat-0", "repeat-1", "repeat-2"):
        assert f'"{sent}"' in text
    assert '"0.28.0"' in text


@pytest.mark.vllm
def test_what_is_said(tmp_path: Path) -> None:
    """With --quiet nothing; where a scenario fails only that, since no file is in its place."""
    out = tmp_path / "spans.jsonl"
    done = command("--quiet", "model_case", "--out", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == [out]
    before = out.read_bytes()
    small = tmp_path / "small.yaml"
    small.write_text(json.dumps(shipped("model_case", num_gpu_blocks=5)))
    done = command(small, "--out", out)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "too small for cold" in done.stderr
    assert (out.read_bytes(), sorted(tmp_path.iterdir())) == (before, [small, out])


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_instrumentation_changes_nothing(
    lab: Labs, bare_lab: Labs, tmp_path: Path, version: str, asynchronous: bool
) -> None:
    """With the plugin and without it vLLM does the same, chunk for chunk, evictions and preemptions included."""
    crowded = [
        request("a", ("a", 700), output_tokens=100),
        request("b", ("b", 700), output_tokens=100, **{"with": "a"}),
        request("again", ("a", 700)),
    ]
    for index, data in enumerate(
        [
            shipped("model_case", async_scheduling=asynchronous),
            shipped("early_branch", async_scheduling=asynchronous, num_gpu_blocks=40),
            scenario(crowded, num_gpu_blocks=97, async_scheduling=asynchronous),
            scenario(resent(3000), replicas=2, speculative=MTP, async_scheduling=asynchronous),
        ]
    ):
        out = tmp_path / f"{index}.jsonl"
        result = lab[version].run(data, out)
        assert result == bare_lab[version].run(data)
        assert span_names(out)[names.LOOKUP] >= len(result.requests)


@pytest.mark.vllm
def test_one_worker_many_files(lab: Labs, tmp_path: Path) -> None:
    """Each run's spans go to its own file, complete when the run returns."""
    files = [tmp_path / f"{index}.jsonl" for index in range(3)]
    for index, file in enumerate(files):
        lab["0.32.0"].run(scenario([request(f"run-{index}", ("doc", 100))]), file)
    for index, file in enumerate(files):
        assert span_names(file)[names.LOOKUP] == 1
        assert f'"run-{index}"' in file.read_text()


@pytest.mark.vllm
def test_the_lab_knows_nothing_of_hits(tmp_path: Path) -> None:
    """Take a hook out and its spans are gone, while vLLM's results stay."""
    out = tmp_path / "spans.jsonl"
    with LabWorker(lane_folder("0.28.0"), environ={DISABLED_HOOKS: "lookup"}) as worker:
        assert worker.run(shipped("model_case"), out).hits == [0, 0, 9600, 9600]
    found = span_names(out)
    assert found[names.LOOKUP] == 0
    assert found[names.GROUP_LOOKUP] == 0
    assert found[names.STORE] > 0
    assert found[names.STEP] > 0


@pytest.mark.vllm
def test_wrong_arguments(tmp_path: Path) -> None:
    """One sentence on stderr, exit code 2."""
    out = tmp_path / "spans.jsonl"
    (tmp_path / "bad.yaml").write_text("engine: {groups: [{kind: mamba}], block_size: 0}\nrequests: []\n")
    for arguments, message in [
        (["none.yaml", "--out", out], "none.yaml: no such file"),
        ([tmp_path / "bad.yaml", "--out", out], "engine.block_size: Expected `int` >= 1"),
        (["model_case", "--out", tmp_path / "none" / "spans.jsonl"], "no such folder for the spans"),
        (["model_case", "--out", out, "--vllm", tmp_path], "holds no package vllm"),
    ]:
        done = command(*arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not out.exists()


@pytest.mark.vllm
def test_a_vllm_that_dies(tmp_path: Path) -> None:
    """The last words of a vLLM that cannot be imported are in the message."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('half installed')")
    with LabWorker(tmp_path, instrument=False) as worker, pytest.raises(LabError, match="half installed"):
        worker.run(scenario(resent(100)))
    (tmp_path / "vllm" / "__init__.py").write_text("import os, sys\nprint('bye', file=sys.stderr)\nos._exit(3)")
    with LabWorker(tmp_path, instrument=False) as worker, pytest.raises(LabError, match=r"code 3; .*\n  bye"):
        worker.run(scenario(resent(100)))


def test_worker_refuses() -> None:
    """A worker without instrumentation has no spans to write, and one with it must be told where to."""
    data = scenario(resent(100))
    with LabWorker() as worker, pytest.raises(LabError, match="needs a file for the spans"):
        worker.run(data)
    with LabWorker(instrument=False) as worker, pytest.raises(LabError, match="has none to write"):
        worker.run(data, Path("spans.jsonl"))
    with LabWorker() as worker, pytest.raises(ScenarioError, match="engine: missing"):
        worker.run({}, Path("spans.jsonl"))
