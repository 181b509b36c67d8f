"""The caller's trace context through the real engine: with vLLM's own tracing, over HTTP, and without it.

`opentelemetry-instrument` starts the server, and a program instruments itself; nobody sets a variable of ours.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from semconv.rules import problems
from sidecar.collectors import Collector

from analyzers.doctor.checks import OK, WARNING
from analyzers.doctor.context import check_context
from analyzers.doctor.servers import running_servers
from analyzers.vllm_lab.model import write_model
from otel_cache.package import SCOPE
from otel_cache.semconv import names
from otel_cache.sidecar.status import Status, query_status
from scripts.semconv.registry import load

from .served import START_SECONDS

# A start takes minutes on a machine with much else to do.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
BIN = Path(sys.executable).parent
PROGRAM = Path(__file__).with_name("program.py")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
LLM_REQUEST = "llm_request"
"""vLLM's own span of a request."""


@dataclass(frozen=True)
class Span:
    """A span that the collector got: ids in hex, the parent's empty for a root."""

    name: str
    scope: str
    trace: str
    id: str
    parent: str
    links: list[str]
    attributes: dict[str, Any]


def spans(collector: Collector) -> list[Span]:
    """Return what the collector got, from whom it came."""
    return [
        Span(
            span.name,
            scope.scope.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            [link.span_id.hex() for link in span.links],
            {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes},
        )
        for request in list(collector.requests)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def ours(collector: Collector) -> Iterator[dict[str, Any]]:
    """Yield what the collector got of our spans, as OTLP JSON lines."""
    for request in list(collector.requests):
        for resource in MessageToDict(request, use_integers_for_enums=True)["resourceSpans"]:
            if any(scope["scope"]["name"] == SCOPE for scope in resource["scopeSpans"]):
                yield {"resourceSpans": [resource]}


def wait_for(what: Callable[[], Any], seconds: float, process: "subprocess.Popen[bytes] | None" = None) -> Any:
    """Return what `what` yields once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """A folder for sockets, with a name that is short enough."""
    folder = Path(tempfile.mkdtemp(prefix="oc-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, runtime: Path, **variables: str) -> dict[str, str]:
    """Return an environment without any variable of OpenTelemetry, ours included, but these."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "VLLM_PLUGINS"))}
    own = {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(runtime), "HF_HUB_OFFLINE": "1"}
    return plain | own | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"} | variables


def sidecar_status(runtime: Path) -> Status | None:
    """Return how the sidecar is that the plugin has started; None: it is not there yet."""
    path = runtime / "otel-cache" / "sidecar.sock"
    return query_status(str(path)) if path.exists() else None


@dataclass(frozen=True)
class Served:
    """What came of two requests to the server, the first with the caller's context."""

    spans: list[Span]
    ours: list[dict[str, Any]]
    status: Status
    level: str
    says: str
    log: str

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module")
def served(model: Path, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """vLLM's HTTP server under `opentelemetry-instrument`, with its own tracing on."""
    folder = tmp_path_factory.mktemp("served")
    collector = Collector()
    collector.start()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [
        *(BIN / "opentelemetry-instrument", sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", model, "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
        *("--mamba-ssm-cache-dtype", "float32", "--max-model-len", "8192", "--max-num-seqs", "4"),
        *("--served-model-name", "tiny", "--port", port, "--otlp-traces-endpoint", collector.endpoint),
    ]
    log = folder / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [str(word) for word in command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(folder, runtime),
            cwd=folder,
        )
    try:
        wait_for(lambda: answers(port), START_SECONDS, server)
        complete(port, {"traceparent": TRACEPARENT})
        complete(port, {})
        status = wait_for(lambda: (now := sidecar_status(runtime)) and now.requests == 2 and now, 60, server)
        check = check_context(status, [one for one in running_servers() if one.pid == server.pid])
        wait_for(lambda: len([span for span in spans(collector) if span.name == LLM_REQUEST]) == 2, 60, server)
        wait_for(lambda: len([span for span in spans(collector) if span.name == names.REQUEST]) == 2, 60, server)
        wait_for(lambda: (now := sidecar_status(runtime)) and not now.spans_waiting, 60, server)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        collector.stop()
    assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), log.read_text()[-3000:]
    yield Served(spans(collector), list(ours(collector)), status, check.level, check.says, log.read_text())


def answers(port: int) -> bool:
    """Whether the server is ready."""
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def complete(port: int, headers: dict[str, str]) -> None:
    """Send a prompt of 1,960 tokens: it ends three blocks of 640, and a state is stored."""
    body = {"model": "tiny", "prompt": 4 * list(range(10, 500)), "max_tokens": 3, "temperature": 0}
    request = urllib.request.Request(
        f"http://localhost:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def test_one_trace(served: Served) -> None:
    """The caller's span is the parent of vLLM's own span and of ours; the rest hangs below ours."""
    ours = next(span for span in served.named(names.REQUEST) if span.trace == TRACE)
    theirs = next(span for span in served.named(LLM_REQUEST) if span.trace == TRACE)
    assert (ours.parent, theirs.parent) == (CALLER, CALLER)
    assert theirs.scope != ours.scope == SCOPE
    assert ours.attributes[names.REQUEST_EXTERNAL_ID] == theirs.attributes["gen_ai.request.id"]
    below = [span for span in served.spans if span.trace == TRACE and span.scope == SCOPE and span != ours]
    by_id = {span.id: span for span in below}
    assert {span.name for span in below} == {names.LOOKUP, names.GROUP_LOOKUP, names.STORE}
    for span in below:
        parent = by_id[span.parent] if span.name == names.GROUP_LOOKUP else ours
        assert parent.id == span.parent
        assert parent.name == (names.LOOKUP if span.name == names.GROUP_LOOKUP else names.REQUEST)


def test_without_a_context_each_has_its_own_trace(served: Served) -> None:
    """The second request came without one: a root, in a trace of its own."""
    (ours,) = [span for span in served.named(names.REQUEST) if span.trace != TRACE]
    (theirs,) = [span for span in served.named(LLM_REQUEST) if span.trace != TRACE]
    assert (ours.parent, theirs.parent) == ("", "")
    assert ours.trace != theirs.trace
    assert ours.attributes[names.REQUEST_EXTERNAL_ID] == theirs.attributes["gen_ai.request.id"]


def test_steps_are_linked_and_apart(served: Served) -> None:
    """A step is a root of its own trace, with a link to the request that prefilled in it."""
    ours = next(span for span in served.named(names.REQUEST) if span.trace == TRACE)
    steps = served.named(names.STEP)
    assert steps
    assert not [step for step in steps if step.trace == TRACE or step.parent]
    assert [step for step in steps if ours.id in step.links]


def test_the_engines_spans_are_as_registered(served: Served) -> None:
    """What a real engine and its worker make, on its way to a back end."""
    registry = load()
    assert sorted({text for line in served.ours for text in problems(line, registry)}) == []
    assert {span.name for span in served.spans if span.scope == SCOPE} >= {names.REQUEST, names.STEP, names.EXECUTE}


def test_doctor_says_that_context_arrives(served: Served) -> None:
    """By the sidecar's counts, and by the server's command line."""
    assert (served.status.requests, served.status.requests_traced) == (2, 1)
    assert (served.level, served.says) == (OK, "1 of 2 requests came with their caller's")
    assert "traces the prefix cache of vLLM" in served.log


def test_without_vllms_tracing_the_context_is_dropped(model: Path, tmp_path: Path) -> None:
    """A program that instruments itself: its spans are made, as roots, vLLM says why, and so does doctor."""
    runtime = Path(tempfile.mkdtemp(prefix="oc-"))
    out, log = tmp_path / "spans.jsonl", tmp_path / "log"
    with log.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, PROGRAM, model, TRACEPARENT],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(tmp_path, runtime, OTEL_PYTHON_VLLM_CACHE_OUT=str(out)),
            cwd=tmp_path,
        )
    try:
        wait_for(lambda: b"served 3" in log.read_bytes(), 300, program)
        # While the program is there: the sidecar leaves some seconds after it.
        status = wait_for(lambda: (now := sidecar_status(runtime)) and now.requests and now, 60, program)
        check = check_context(status, [])
        program.communicate(timeout=120)
        found = wait_for(lambda: [span for span in written(out) if span["name"] == names.REQUEST], 30)
    finally:
        program.kill()
        shutil.rmtree(runtime, ignore_errors=True)
    assert program.returncode == 0, log.read_text()[-3000:]
    assert "Received a request with trace context but tracing is disabled" in log.read_text()
    assert (status.requests, status.requests_traced) == (1, 0)
    assert (check.level, check.todo) == (WARNING, "start vLLM with --otlp-traces-endpoint URL")
    assert "0 of 1 requests came with their caller's: vLLM drops" in check.says
    (request,) = found
    assert "parentSpanId" not in request
    assert request["traceId"] != TRACE


def written(out: Path) -> list[dict[str, Any]]:
    """Return the spans in a file that a sidecar may still be writing to."""
    lines = out.read_bytes().splitlines(keepends=True) if out.exists() else []
    return [
        span
        for line in lines
        if line.endswith(b"\n")
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
