"""OpenTelemetry's way in: `opentelemetry-instrument`, its variables, and the instrumentor in a program."""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from analyzers.vllm_lab.run import ENVIRONMENT
from otel_cache.config import DISABLED_INSTRUMENTATIONS, ENABLED, PLUGINS, SDK_DISABLED, read_config

ROOT = Path(__file__).parents[2]
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
PROGRAM = Path(__file__).with_name("patched.py")
ASK = f"import os; print(os.environ.get({ENABLED!r}), os.environ.get({PLUGINS!r}))"
ASK_A_CHILD = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {ASK!r}]))"


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with these variables, and none of ours besides."""
    names = (ENABLED, PLUGINS, SDK_DISABLED, DISABLED_INSTRUMENTATIONS)
    clean = {name: value for name, value in os.environ.items() if name not in names}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return clean | ENVIRONMENT | {"PYTHONPATH": path} | variables


def run(*command: object, folder: Path, **variables: str) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=environment(**variables),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_the_name_is_not_vllms() -> None:
    """vLLM's GenAI instrumentation may come under the name `vllm`."""
    (point,) = [each for each in entry_points(group="opentelemetry_instrumentor") if each.dist.name == "otel-cache"]
    assert point.name == "vllm_cache"


@pytest.mark.parametrize("code", [ASK, ASK_A_CHILD], ids=["the process", "its child"])
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "true None"),
        ({ENABLED: "true"}, "true None"),
        ({ENABLED: "false"}, "false None"),
        ({PLUGINS: "other"}, "true other,otel_cache"),
        ({PLUGINS: ""}, "true otel_cache"),
        ({SDK_DISABLED: "True"}, "None None"),
        ({DISABLED_INSTRUMENTATIONS: "requests, vllm_cache"}, "None None"),
        ({DISABLED_INSTRUMENTATIONS: "*"}, "None None"),
        ({DISABLED_INSTRUMENTATIONS: "vllm"}, "true None"),
    ],
    ids=str,
)
def test_opentelemetry_instrument_turns_it_on(
    tmp_path: Path, code: str, variables: dict[str, str], expected: str
) -> None:
    """The environment carries it on, unless a variable keeps it off. vLLM is not imported for that."""
    assert run(INSTRUMENT, sys.executable, "-c", code, folder=tmp_path, **variables) == expected


@pytest.mark.parametrize(
    ("variables", "enabled"),
    [
        ({ENABLED: "true"}, True),
        ({ENABLED: "true", SDK_DISABLED: "false", DISABLED_INSTRUMENTATIONS: "vllm,requests"}, True),
        ({ENABLED: "true", SDK_DISABLED: "true"}, False),
        ({ENABLED: "true", DISABLED_INSTRUMENTATIONS: "requests , vllm_cache"}, False),
        ({ENABLED: "true", DISABLED_INSTRUMENTATIONS: "*"}, False),
    ],
)
def test_the_plugin_honours_opentelemetrys_variables(variables: dict[str, str], enabled: bool) -> None:
    """However it was asked for."""
    assert read_config(variables).enabled is enabled


def test_the_instrumentor_loads_without_vllm_and_does_not_load_it(tmp_path: Path) -> None:
    """In an environment that has OpenTelemetry and us, and no vLLM: it says what is missing and does no harm."""
    site = Path(sysconfig.get_paths()["purelib"])
    names = ("opentelemetry*", "wrapt*", "packaging*", "typing_extensions*")
    for path in (path for name in names for path in site.glob(name)):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "otel_cache").symlink_to(ROOT / "otel_cache")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from otel_cache.opentelemetry_instrumentor import VLLMCacheInstrumentor as Instrumentor\n"
        "Instrumentor().instrument()\n"
        "print(Instrumentor().is_instrumented_by_opentelemetry)\n"
        "Instrumentor().instrument(skip_dep_check=True)\n"
        "print(Instrumentor().is_instrumented_by_opentelemetry, 'vllm' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "False"]
    assert '"vllm >= 0.26.0.dev0"' in done.stderr


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("command", "variables", "patched"),
    [
        ([INSTRUMENT], {PLUGINS: "lora_filesystem_resolver"}, True),
        ([], {ENABLED: "true", SDK_DISABLED: "true"}, False),
        ([INSTRUMENT], {ENABLED: "true", DISABLED_INSTRUMENTATIONS: "vllm_cache"}, False),
    ],
    ids=str,
)
def test_vllms_processes(command: list[Path], variables: dict[str, str], patched: bool, tmp_path: Path) -> None:
    """vLLM's own plugin loader decides, in the process and in one that it spawns."""
    found = json.loads(run(*command, sys.executable, PROGRAM, folder=tmp_path, **variables))
    assert ("Scheduler.schedule" in found["parent"], "Scheduler.schedule" in found["child"]) == (patched, patched)
    assert patched or found == {"parent": [], "child": []}


@pytest.mark.vllm
def test_in_a_program(tmp_path: Path) -> None:
    """Before vLLM is imported, after it, and undone: methods, and what children would find in the environment."""
    code = (
        "import os, sys\n"
        "out = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1)\n"
        "from otel_cache.opentelemetry_instrumentor import VLLMCacheInstrumentor as Instrumentor\n"
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "own = Scheduler.schedule\n"
        "Instrumentor().instrument()\n"
        f"print(Scheduler.schedule is own, os.environ.get({ENABLED!r}), file=out)\n"
        "Instrumentor().uninstrument()\n"
        f"print(Scheduler.schedule is own, os.environ.get({ENABLED!r}), file=out)\n"
    )
    assert run(sys.executable, "-c", code, folder=tmp_path).splitlines() == ["False true", "True None"]
