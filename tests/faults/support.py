"""What the tests of faults share: an engine in a process, its sidecars, and the account of what got through."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from sidecar.support import Read, named, read_requests
from sidecar.support import parse_line as parse_line

from otel_cache.semconv import names

from .engine import STEP

SCRIPT = Path(__file__).with_name("engine.py")
ROOT = SCRIPT.parents[2]


def workload(requests: int, output_tokens: int = 6) -> dict[str, Any]:
    """Return a scenario: prompts that share prefixes, by threes at once, in a pool too small for all of them."""
    return {
        "engine": {"groups": [{"kind": "full_attention"}], "block_size": 16, "num_gpu_blocks": 90},
        "requests": [
            {
                "id": f"r{number}",
                "prompt": [
                    {"segment": f"shared{number % 5}", "tokens": 200},
                    {"segment": f"own{number % 11}", "tokens": 60 + number % 7 * 16},
                ],
                "output_tokens": output_tokens,
                **({"with": f"r{number - number % 3}"} if number % 3 else {}),
            }
            for number in range(requests)
        ],
    }


class Engine:
    """An engine that runs a scenario.

    Attributes:
        folder: where it reads and writes; see `engine.py`.
        capture: the file of a sidecar that it starts itself.
        socket: where that one listens.

    """

    def __init__(self, folder: Path, scenario: dict[str, Any], *options: str, traced: bool = True, **more: str) -> None:
        """Start it; `more` are environment variables."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.capture = folder.parent / "capture.jsonl"
        self.runtime = folder.parent / "run"
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.socket = str(self.runtime / "otel-cache" / "sidecar.sock")
        (folder / "scenario.json").write_text(json.dumps(scenario))
        environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "OTEL_PYTHON_VLLM_CACHE_ENABLED": str(traced).lower(),
            "OTEL_PYTHON_VLLM_CACHE_OUT": str(self.capture),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_TARGET_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
            **more,
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), *options], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Index and time, ns since the epoch, of every step so far."""
        with contextlib.suppress(FileNotFoundError):
            data = (self.folder / "steps").read_bytes()
            return list(STEP.iter_unpack(data[: len(data) // STEP.size * STEP.size]))
        return []

    def results(self, name: str = "results.json") -> Any:
        """Wait for its end; return what vLLM said of each request."""
        assert self.process.wait(1200) == 0
        return json.loads((self.folder / name).read_text())

    def records(self) -> dict[int, dict[int, tuple[str, str, int]]]:
        """Return for each process id, by number, every record that was sent: kind, request, requests scheduled."""
        found: dict[int, dict[int, tuple[str, str, int]]] = {}
        for line in (self.folder / "records.jsonl").open():
            process, rows = json.loads(line)
            found.setdefault(process, {}).update({number: tuple(rest) for number, *rest in rows})
        return found

    def kill(self) -> None:
        """End it, if it is still there, and whatever sidecar it started."""
        self.process.kill()
        self.process.wait()
        for sidecar in sidecars(self.socket):
            with contextlib.suppress(psutil.NoSuchProcess):
                sidecar.terminate()
                sidecar.wait(30)


def sidecars(socket: str) -> list[psutil.Process]:
    """Return the sidecars on a socket, those that are about to start included."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "otel_cache.sidecar" in words and socket in words and "-c" not in words:
            found.append(process)
    return found


def kill_sidecar(socket: str) -> bool:
    """Kill a sidecar where there is one."""
    for process in sidecars(socket):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            return True
    return False


def await_exit(socket: str, seconds: float = 60) -> None:
    """Wait until no sidecar is left: an automatic one leaves when it is idle."""
    deadline = time.monotonic() + seconds
    while sidecars(socket):
        assert time.monotonic() < deadline, "the sidecar does not leave"
        time.sleep(0.1)


def read_capture(path: Path) -> list[Read]:
    """Read a file of evidence; lines that a killed sidecar cut short are passed over, as `analyze` does."""
    requests = []
    for line in path.open("rb"):
        with contextlib.suppress(ValueError):
            requests.append(parse_line(json.loads(line)))
    return read_requests(requests)


def instance(span: Read) -> str:
    """Return the life of a replica that a span is of."""
    return str(span.resource["service.instance.id"])


def numbers_of(spans: Sequence[Read]) -> list[int]:
    """Return the numbers of the evidence, as they stand in the file."""
    return [span[names.EVIDENCE_NUMBER] for span in spans if names.EVIDENCE_NUMBER in span.attributes]


def missing_of(spans: Sequence[Read]) -> int:
    """Return how many records the spans say are missing."""
    return sum(span.attributes.get(names.MISSING_RECORDS, 0) for span in spans)


def lost_of(records: dict[int, tuple[str, str, int]], spans: Sequence[Read]) -> int:
    """Return how many of the records of one process are in none of its spans: by the records, not by what spans say.

    Steps and lookups have a span of their own, a lookup's with its attempts; stores and evictions that follow one
    another in a step are one span, which has the number of the first. Records that never have a span do not count.
    """
    steps = {number for number, (kind, _, scheduled) in records.items() if kind == "Step" and scheduled}
    lookups = sum(kind in ("Lookup", "RepeatedLookup") for kind, _, _ in records.values())
    lost = len(steps - {span[names.RECORD_SEQUENCE] for span in named(spans, names.STEP)})
    lost += lookups - sum(span[names.LOOKUP_ATTEMPTS] for span in named(spans, names.LOOKUP))
    begun = {span.attributes.get(names.RECORD_SEQUENCE) for span in spans if span.name in (names.STORE, names.EVICT)}
    for run in _runs(records):
        first = next((index for index, number in enumerate(run) if number in begun), len(run))
        lost += first
    return lost


def _runs(records: dict[int, tuple[str, str, int]]) -> Iterator[list[int]]:
    run: list[int] = []
    latest: tuple[str, str] | None = None
    for number in sorted(records):
        kind, request, _ = records[number]
        if kind == "Step":
            latest = None
        elif kind in ("Store", "Evict", "Reset"):
            if latest != (kind, request) or kind == "Reset":
                if run:
                    yield run
                run = []
            latest = (kind, request)
            run.append(number)
    if run:
        yield run
