"""What the collector tests are loaded with: vLLM's real schedulers under the plugin, and a sidecar that exports."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.cases import FULL, HYBRID, MTP, request, scenario
from sidecar.support import Read, read_lines

from analyzers.analysis import analyze
from analyzers.readers import open_capture
from analyzers.reporters.json import to_object
from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache.semconv import names
from otel_cache.sidecar.launch import start_child
from otel_cache.sidecar.status import Status, query_status

from .programs import wait_until

EXPORT_SECONDS = 240.0
"""How long what waits for a collector may take to get there: long, since only a broken way takes it."""


class Traced:
    """A lab whose scenarios all go through one sidecar.

    Attributes:
        out: the sidecar's file, whole once the sidecar has ended.

    """

    def __init__(self, lab: LabWorker, socket: str, out: Path) -> None:
        """Take a lab with the instrumentation and the socket of a sidecar that writes to `out`."""
        self._lab, self._socket, self.out = lab, socket, out

    def run(self, wanted: Mapping[str, Any]) -> LabResult:
        """Run a scenario: one life of each of its replicas."""
        return self._lab._ask(parse_scenario(wanted), Path(self._socket))

    @property
    def status(self) -> Status:
        """How the sidecar is."""
        return query_status(self._socket)

    def await_exported(self) -> None:
        """Wait until the collector has taken all that the sidecar had for it."""
        wait_until(self._settled, "the sidecar's spans are exported", EXPORT_SECONDS)

    def _settled(self) -> bool:
        status = self.status
        return status.spans_built > 0 and status.spans_exported == status.spans_built


@contextlib.contextmanager
def traced(lab: LabWorker, folder: Path, endpoint: str, **environment: str) -> Iterator[Traced]:
    """Yield a lab whose sidecar writes to a file in `folder` and exports to `endpoint` (a URL).

    `environment` are variables of the sidecar; it sees no others of OpenTelemetry's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))
    state = folder / "state"
    state.mkdir(exist_ok=True)
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("OTEL_") and name != "OTEL_CACHE_BACKENDS"]:
        del os.environ[name]
    os.environ |= {"XDG_STATE_HOME": str(state), **environment}
    try:
        sidecar = start_child(str(place / "s"), str(folder / "sidecar.jsonl"), endpoint)
    finally:
        os.environ.clear()
        os.environ |= before
    try:
        yield Traced(lab, str(place / "s"), folder / "sidecar.jsonl")
    finally:
        sidecar.stop()
        shutil.rmtree(place)


def spans_of(path: Path) -> list[Read]:
    """Return the spans of a sidecar's file."""
    return read_lines(path)


def ids(spans: list[Read]) -> set[tuple[str, str]]:
    """Return trace and span id of each span."""
    return {(span.trace_id, span.span_id) for span in spans}


def report(*paths: Path) -> str:
    """Return the analysis of captures as JSON, without what it says of how they were read."""
    data = to_object(analyze(open_capture(paths)))
    del data["coverage"]
    return json.dumps(data, indent=1)


def losing(spans: list[Read]) -> set[str]:
    """Return the traces in which a lookup lost what one group had and another had not."""
    return {span.trace_id for span in spans if span.attributes.get(names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS, 0) > 0}


def hybrid(name: str, requests: int = 24) -> dict[str, Any]:
    """Return a scenario on two hybrid replicas: documents sent again, and questions about them, in pools that evict.

    `name` makes the prompts others than those of another scenario. Lookups are limited by groups, by what nobody has
    and by speculation; blocks of both kinds are evicted.
    """
    sent = []
    for number in range(requests):
        document = f"{name}{number % 6}"
        if number % 3 == 2:
            prompt = ((document, 1100), (f"{name}own{number}", 300))
            sent.append(request(f"{name}-{number}", *prompt, times=2))
        else:
            sent.append(request(f"{name}-{number}", (document, 1200), times=1 + number % 3))
    engine = {
        "block_size": 160,
        "prefix_cache_retention_interval": 0,
        "max_num_batched_tokens": 640,
        "speculative": MTP,
    }
    return scenario(sent, HYBRID, replicas=2, num_gpu_blocks=60, **engine)


def plenty(name: str, requests: int) -> dict[str, Any]:
    """Return a scenario on one replica: many short prompts without anything in common, and little else."""
    sent = [request(f"{name}-{number}", (f"{name}{number}", 100 + number % 50)) for number in range(requests)]
    return scenario(sent, FULL, num_gpu_blocks=200)


def bulky(name: str, requests: int) -> dict[str, Any]:
    """Return a scenario whose spans are large and do not compress: long prompts over blocks of 16, pushed out again."""
    sent = [request(f"{name}-{number}", (f"{name}{number}", 30_000)) for number in range(requests)]
    return scenario(sent, FULL, num_gpu_blocks=2500, max_num_batched_tokens=8192)
