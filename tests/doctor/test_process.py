"""`otel-cache doctor` as a process, on real vLLMs: as they are, with a method renamed, with a parameter added."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.cases import shipped
from vllm_versions import INSTALLED, LANES, lane_folder

from analyzers.doctor.context import NAME as CONTEXT
from analyzers.vllm_lab.run import ENVIRONMENT, LabWorker
from otel_cache.config import ENABLED, OUT, SOCKET

from .overlay import Edit, make_overlay

pytestmark = pytest.mark.vllm
BIN = Path(sys.executable).parent
PATCHED = Path(__file__).parents[1] / "instrumentation" / "patched.py"
LANE = lane_folder(LANES[0])
CORE = "v1/core/"
TIMES = ("_duration", "time_to_first_token")

RENAMED: dict[str, list[Edit]] = {
    CORE + "kv_cache_manager.py": [(r"\bget_computed_blocks\b", "find_computed_blocks")],
    CORE + "sched/scheduler.py": [(r"\bget_computed_blocks\b", "find_computed_blocks")],
    CORE + "block_pool.py": [(r"\bnum_cached_blocks\b", "num_known_blocks")],
    CORE + "single_type_kv_cache_manager.py": [(r"\bnum_cached_blocks=", "num_known_blocks=")],
}
ADDED: dict[str, list[Edit]] = {
    CORE + "kv_cache_manager.py": [(r"(def get_computed_blocks\(self, request: Request)\)", r"\1, priority: int = 0)")],
    CORE + "block_pool.py": [(r"(def cache_full_blocks\(\s+self,)", r"\1 *, priority: int = 0,")],
}


def doctor(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run doctor in an environment with these variables and none of the developer's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "VLLM_PLUGINS"))}
    return subprocess.run(
        [BIN / "otel-cache", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=plain | {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)} | variables,
    )


def levels(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the level of each check of a text report, by its name."""
    lines = (line.split(maxsplit=1) for line in done.stdout.splitlines()[:-1])
    return {text.partition(":")[0]: level for level, text in lines}


def test_a_sound_environment(start: Any, socket_path: str, collector: Any, tmp_path: Path) -> None:
    """Nothing is wrong: exit code 0, and each check says so. JSON has the same."""
    start(tmp_path / "spans.jsonl")
    done = doctor(
        "--format",
        "json",
        folder=tmp_path,
        **{ENABLED: "true", SOCKET: socket_path, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["problems"] == 0
    # Doctor warns of servers without tracing, such as one that a test beside this one has started.
    assert {check["name"] for check in found["checks"] if check["level"] == "warning"} <= {CONTEXT}
    says = {check["name"]: check["says"] for check in found["checks"]}
    assert says["vllm"].startswith(f"{INSTALLED}, tested")
    assert says["patch"].startswith("this vLLM can be patched")
    assert says["collector"] == f"{collector.endpoint} answers"
    assert socket_path in says["sidecar"]
    assert {"spool", CONTEXT} <= set(says)
    assert not [name for name in says if name.startswith("hook")]
    assert found["traced"] is True
    assert len(collector.requests) == 1


def test_a_renamed_method_and_parameter(tmp_path: Path) -> None:
    """Doctor names both; the plugin leaves vLLM as it is, in every process, and its log names one."""
    overlay = make_overlay(LANE, tmp_path / "vllm-renamed", RENAMED)
    done = doctor("--vllm", str(overlay), folder=tmp_path, **{ENABLED: "true", OUT: str(tmp_path / "spans.jsonl")})
    assert done.returncode == 1
    found = levels(done)
    lookup, store = "hook lookup (KVCacheManager.get_computed_blocks)", "hook store (BlockPool.cache_full_blocks)"
    assert {name for name, level in found.items() if level == "problem"} == {lookup, store, "patch"}
    assert f"{lookup}: vLLM's KVCacheManager has no method get_computed_blocks -> " in done.stdout
    assert f"{store}: vLLM's BlockPool.cache_full_blocks has no parameter num_cached_blocks -> " in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("3 problems, ")
    assert last.endswith("would not be traced (see patch)")

    path = os.pathsep.join([str(overlay), str(PATCHED.parents[2])])
    loaded = subprocess.run(
        [sys.executable, PATCHED],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO", "PYTHONPATH": path, ENABLED: "true"},
    )
    assert json.loads(loaded.stdout) == {"parent": [], "child": []}
    assert "instrumenting vLLM failed (BindingError: vLLM's KVCacheManager has no method get_comp" in loaded.stderr


def test_a_parameter_more(tmp_path: Path) -> None:
    """It is patched all the same, and records what it records without that parameter."""
    overlay = make_overlay(LANE, tmp_path / "vllm-added", ADDED)
    variables = {ENABLED: "true", OUT: str(tmp_path / "spans.jsonl")}
    done = doctor("--vllm", str(overlay), folder=tmp_path, **variables)
    assert (done.returncode, "problem" in levels(done).values()) == (0, False), done.stdout
    assert f"({overlay / 'vllm'})" in done.stdout

    scenario = shipped("model_case")
    # Both begin here: with another key, as one that began elsewhere may have, fingerprints differ.
    for vllm, name in ((LANE, "own"), (overlay, "added")):
        with LabWorker(vllm) as worker:
            worker.run(scenario, tmp_path / f"{name}.jsonl")
    assert told(tmp_path / "added.jsonl") == told(tmp_path / "own.jsonl")


def told(path: Path) -> list[tuple[str, Any]]:
    """Return name and attributes of every span in a file, but for times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    scopes = [scope for line in lines for resource in line["resourceSpans"] for scope in resource["scopeSpans"]]
    spans = [
        (span["name"], [each for each in span["attributes"] if not each["key"].endswith(TIMES)])
        for scope in scopes
        for span in scope["spans"]
    ]
    assert spans
    return spans


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vllm", "nowhere"], "nowhere: holds no package vllm"),
        (["--format", "yaml"], "Invalid value for '--format'"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    """One sentence, exit code 2."""
    done = doctor(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
