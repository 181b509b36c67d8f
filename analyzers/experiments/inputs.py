"""What an experiment is run on: a scenario, a trace in Mooncake's format, or the requests of a capture."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from analyzers.experiments.engine import engine_of
from analyzers.experiments.requests import Recorded, recorded
from analyzers.model import Capture
from analyzers.readers import open_capture
from analyzers.readers.object_storage import is_address
from analyzers.vllm_lab.checks import check_scenario
from analyzers.vllm_lab.routing import routed
from analyzers.vllm_lab.scenario import Scenario, find_scenario
from analyzers.vllm_lab.workload import EngineFile, load_engine, load_workload
from otel_cache.errors import ScenarioError
from otel_cache.semconv import names

SAME = Path("same")
"""In the place of an engine file: the engine that the capture's own replicas had."""
YAML = (".yaml", ".yml")
FIRST_BYTES = 1 << 16
BLANK = b"\xef\xbb\xbf \t\r\n"


@dataclass(frozen=True)
class Work:
    """What is to be run: `name` is the file, `capture` where its requests are from (None: a scenario or a trace)."""

    name: str
    scenario: Scenario
    capture: Capture | None = None
    notes: Sequence[str] = ()

    @property
    def versions(self) -> list[str]:
        """The versions of vLLM that the capture is of."""
        lives = self.capture.lives if self.capture else ()
        return sorted({str(life.attributes.get(names.VLLM_VERSION, "not known")) for life in lives})


def load_work(path: Path, engine: Path | None) -> Work:
    """Read what `path` names, to be run on the engine of the file `engine`, or its own.

    Raises:
        ScenarioError: it says something impossible, or a trace or a capture comes without an engine.
        CaptureError: it is a capture that cannot be read.
        LabError: the lab cannot build the engine of the capture.

    """
    path, address = find_scenario(path), _address(path)
    if path.is_file() and not path.stat().st_size:
        raise ScenarioError(f"{path}: is empty; it holds neither requests nor spans")
    if not address and not is_capture(path):
        if engine == SAME and not SAME.exists():
            raise ScenarioError(
                f"{path} is no capture, so there is no engine to be the same; name a file with --engine"
            )
        return Work(str(path), load_workload(path, engine))
    if engine is None:
        raise ScenarioError(
            f"{address or path} is a capture; name the engine to run it on: --engine same, or --engine FILE"
        )
    capture = open_capture([address or path])
    found = recorded(capture)
    if engine == SAME:
        scenario = Scenario(engine_of(capture), tuple(found.requests), len(found.replicas))
    else:
        scenario = _on_engine(found, load_engine(engine))
    check_scenario(scenario, f"{address or path} on {engine}")
    return Work(address or str(path), scenario, capture, [*capture.notes, *found.notes])


def _address(path: Path) -> str:
    """Return the address in object storage that `path` was made of, of which it lost a slash; "" where it is a file."""
    text = str(path).replace(":/", "://", 1)
    return text if is_address(text) else ""


def _on_engine(found: Recorded, file: EngineFile) -> Scenario:
    """Return the requests on another engine: on their own replicas, unless the file has other ones or a routing."""
    replicas = file.replicas or len(found.replicas)
    requests = [
        request
        if file.output_tokens is None
        else msgspec.structs.replace(request, output_tokens=file.output_tokens, stop_after=None)
        for request in found.requests[: file.requests]
    ]
    if replicas != len(found.replicas) or file.routing is not None:
        requests = [msgspec.structs.replace(request, replica=None) for request in requests]
        requests = routed(requests, replicas, file.routing or "round_robin")
    return Scenario(file.engine, tuple(requests), replicas)


def is_capture(path: Path) -> bool:
    """Whether `path` holds spans, and neither a scenario nor a trace in Mooncake's format."""
    if path.suffix in YAML or not path.exists():
        return False
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            begin = file.read(FIRST_BYTES)
        if begin.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                begin = packed.read(FIRST_BYTES)
    except (OSError, EOFError):
        return True
    if b"\0" in begin or begin.startswith(b"PAR1"):
        return True
    return begin.lstrip(BLANK).startswith(b"{") and b'"hash_ids"' not in begin
