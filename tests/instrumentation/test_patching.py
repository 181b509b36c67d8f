"""Patching the real vLLM: off, on, undone, in a forked child, with everything broken, on a changed vLLM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vllm_versions import VERSIONS, lane_folder

from analyzers.analysis import analyze
from analyzers.model import Capture
from analyzers.readers import open_capture
from otel_cache.sidecar.launch import start_child

pytestmark = pytest.mark.vllm
FACTS = Path(__file__).with_name("facts.py")
ROOT = FACTS.parents[2]


@dataclass(frozen=True)
class Found:
    """What a process with one version of vLLM said, and the spans that it made."""

    version: str
    facts: dict[str, Any]
    capture: Capture
    stderr: str


@pytest.fixture(scope="module", params=VERSIONS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """Run facts.py with one version of vLLM and a sidecar."""
    folder = tmp_path_factory.mktemp("facts")
    socket, out = str(folder / "s"), folder / "spans.jsonl"
    sidecar = start_child(socket, str(out), None)
    lane = lane_folder(request.param)
    path = os.pathsep.join(str(part) for part in (lane, ROOT) if part)
    done = subprocess.run(
        [sys.executable, FACTS, socket],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert sidecar.stop() == 0
    assert done.returncode == 0, done.stderr[-3000:]
    yield Found(request.param, json.loads(done.stdout), open_capture([out]), done.stderr)


def test_off_means_not_patched(found: Found) -> None:
    """Without the variable the plugin loads nothing and changes nothing."""
    assert found.facts["version"] == found.version
    assert found.facts["off leaves vLLM alone"] is True


def test_on_patches_each_method_once(found: Found) -> None:
    """However often vLLM loads the plugin."""
    assert found.facts["every method is wrapped once"] is True
    assert "Scheduler.schedule" in found.facts["patched"]
    assert "EngineCore.shutdown" in found.facts["patched"]
    assert found.facts["failures of a sound run"] == {}
    assert f"traces the prefix cache of vLLM {found.version}" in found.stderr


def test_results_are_vllms(found: Found) -> None:
    """Hits, chunks, preemptions and outputs, request for request, in parent and forked child."""
    assert found.facts["results are the same"] is True
    assert found.facts["a forked child records too"] is True
    assert found.facts["the parent goes on"] is True


def test_a_refused_allocation_leaves_no_mark(found: Found) -> None:
    """A pool that raises takes no blocks: what takes some elsewhere later is no eviction."""
    assert found.facts["a refused allocation leaves no mark"] is True


def test_undone(found: Found) -> None:
    """Uninstalling gives vLLM its own objects back."""
    assert found.facts["undone"] is True


def test_whatever_fails_vllm_goes_on(found: Found) -> None:
    """Each function of ours raises, one after the other: what vLLM's schedulers return stays what it was."""
    faults = found.facts["faults"]
    assert faults == dict.fromkeys(faults, True)
    assert len(faults) > 50
    getters = found.facts["faults of getters"]
    assert getters == dict.fromkeys(getters, True)
    assert len(getters) == 3


def test_a_missing_method(found: Found) -> None:
    """A required one leaves vLLM alone, and the message names it; without another one the rest is patched."""
    for name, seen in found.facts["renamed"].items():
        owner, method = name.split(".")
        if seen["required"]:
            assert seen["patched"] == 0, name
            assert owner in seen["error"] and method in seen["error"], seen
        else:
            assert not seen["error"]
            assert seen["patched"] >= len(found.facts["patched"]) - 1, name
    assert {name for name, seen in found.facts["renamed"].items() if seen["required"]} >= {
        "Scheduler.schedule",
        "Scheduler.update_from_output",
        "KVCacheManager.get_computed_blocks",
        "SingleTypeKVCacheManager.find_longest_cache_hit",
        "BlockPool.cache_full_blocks",
        "BlockPool.get_new_blocks",
        "FreeKVCacheBlockQueue.popleft_n",
        "BlockPool.reset_prefix_cache",
    }
    assert found.facts["everything is there again"] is True


def test_new_parameters_are_no_obstacle(found: Found) -> None:
    """Arguments are found by name, in every method."""
    seen = found.facts["new parameters"]
    assert seen == dict.fromkeys(seen, True)
    assert set(seen) == set(found.facts["renamed"])


def test_processes_are_lives(found: Found) -> None:
    """The parent before and after the fork is one process, the child another; ids never meet.

    Every run of the scenario builds a scheduler, and every scheduler is a replica with a life of its own.
    """
    instances = {life.instance.rsplit("-", 1)[0] for life in found.capture.lives}
    assert len(instances) >= 2
    spans = found.capture.lookups["span_id"]
    assert spans.n_unique() == len(spans)
    sound = [life for life in found.capture.lives if life.attributes["process.pid"]]
    assert sound


def test_every_lookup_of_a_sound_run_is_predicted(found: Found) -> None:
    """Three sound runs, one of them in the child; the broken ones leave holes, which count."""
    analysis = analyze(found.capture)
    for lookup in analysis.lookups:
        assert lookup.hit_tokens + sum(lookup.lost.values()) == lookup.prompt_tokens
    explained = [lookup for lookup in analysis.lookups if "unknown" not in lookup.lost]
    assert len(explained) >= 3 * 12
