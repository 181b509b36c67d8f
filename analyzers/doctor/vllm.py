"""Which vLLM there is, and whether it would be patched: asked of a child process that imports it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from analyzers.doctor.checks import Check, ok, problem, warning
from analyzers.vllm_lab.run import ENVIRONMENT, checked_folder
from otel_cache.config import ENABLED
from otel_cache.package import TESTED_VLLM

TIMEOUT_SECONDS = 240
"""The first import of a vLLM without its bytecode takes a minute on a slow disk."""


@dataclass(frozen=True)
class Verdict:
    """What the probes say of one method."""

    hook: str
    method: str
    required: bool
    problem: str


@dataclass(frozen=True)
class Found:
    """What the child found; `error` is what vLLM raised, or why there is no answer.

    `hooks` are all that there are, `verdicts` those that this vLLM would get: some take the place of others.
    """

    installed: bool
    origin: str = ""
    plugin: bool = False
    version: str = ""
    tested: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    error: str = ""
    hooks: list[str] = field(default_factory=list)


def look(folder: Path | None) -> Found:
    """Import the vLLM in `folder`, or the installed one, in a child, and return what is found.

    Raises:
        LabError: `folder` holds no vLLM.

    """
    folder = checked_folder(folder)
    environ = os.environ | ENVIRONMENT | {ENABLED: "false"}
    if folder is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    # -P: a folder `vllm` in the current directory is not the one that is meant.
    command = [sys.executable, "-P", "-m", "analyzers.doctor.child"]
    try:
        done = subprocess.run(command, capture_output=True, env=environ, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return Found(installed=True, error=f"it could not be imported within {TIMEOUT_SECONDS} s")
    try:
        return msgspec.json.decode(done.stdout, type=Found)
    except msgspec.MsgspecError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        return Found(installed=True, error=f"the process that imports it ended with code {done.returncode}: {last[0]}")


def check_vllm(found: Found) -> Iterator[Check]:
    """Yield what is to be said of a vLLM, with a line for each method that is not as expected."""
    if not found.installed:
        todo = "install otel-cache into the environment that vLLM runs in, or name a folder with --vllm DIR"
        yield problem("vllm", "not installed in this Python", todo, untraced=True)
        return
    yield _version(found)
    if found.plugin:
        yield ok("plugin", "its entry point is visible to this Python")
    else:
        says = "vLLM cannot find its entry point in this Python"
        yield problem("plugin", says, "pip install otel-cache, into it", untraced=True)
    yield from (_hook(verdict) for verdict in found.verdicts if verdict.problem)
    if found.verdicts:
        yield _patch(found)


def _version(found: Found) -> Check:
    folder = Path(found.origin).parent
    if found.error:
        todo = "repair this installation of vLLM, or name another one with --vllm DIR"
        says = f"{found.version or 'vLLM'} in {folder} cannot be looked at: {found.error}"
        return problem("vllm", says, todo, untraced=True)
    if found.tested:
        return ok("vllm", f"{found.version}, tested ({folder})")
    says = f"{found.version}, untested: the probes below decide ({folder})"
    return warning("vllm", says, f"tested are {TESTED_VLLM[0]} to {TESTED_VLLM[-1]}")


def _hook(verdict: Verdict) -> Check:
    # A hook may have several methods: the name alone does not tell which is meant.
    name = f"hook {verdict.hook} ({verdict.method})"
    if not verdict.required:
        return ok(name, f"left out: {verdict.problem}")
    return problem(name, verdict.problem, "use a vLLM that is tested, or a newer otel-cache")


def _patch(found: Found) -> Check:
    missing = [verdict for verdict in found.verdicts if verdict.required and verdict.problem]
    if missing:
        says = f"vLLM would be left as it is: {len(missing)} of the methods that are needed are not as expected"
        return problem("patch", says, "see the hooks above", untraced=True)
    count = sum(not verdict.problem for verdict in found.verdicts)
    return ok("patch", f"this vLLM can be patched: {count} of {len(found.verdicts)} methods are as expected")
