"""Real vLLM servers with the tiny model on this CPU, each with a sidecar, and a router in front of them.

A prompt of `PROMPT_TOKENS` words is prefilled in one step, whose chunk ends past the last boundary that an identical
prompt can hit: no Mamba state is made there, and the first repeat misses.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from analyzers.vllm_lab.model import write_model
from otel_cache import config
from otel_cache.sidecar.status import Status, query_status
from scripts.backends import ROOT

from .programs import HOST, Program, Programs, free_port, wait_until

MODEL = "tiny"
PROMPT_TOKENS = 3000
BOUNDARY = 2560
"""The last multiple of the Mamba groups' 640 tokens that leaves a token of the prompt to compute."""
ENGINE_SECONDS = 1200.0
"""How long an engine may take to be ready: two of them start at a time on whatever machine this is."""
ANSWER_SECONDS = 300.0
ENGINES_SECONDS = 1800
"""What a test may take that is the first to need the engines."""


class Sidecar(Program):
    """A sidecar that writes a file and exports.

    Attributes:
        socket: that it listens on, in a folder of its own; `out`: its file.

    """

    def __init__(self, folder: Path, socket: Path, endpoint: str, environment: Mapping[str, str]) -> None:
        """Start it and wait until it listens."""
        self.socket, self.out = socket, folder / "spans.jsonl"
        command = [sys.executable, "-c", "from analyzers.cli import main; main()", "sidecar"]
        options = ["--socket", str(socket), "--out", str(self.out), "--endpoint", f"http://{endpoint}"]
        super().__init__([*command, *options], folder, "sidecar", environment)
        self.await_ready(socket.exists)

    def kill(self) -> None:
        """End it; the folder of its socket goes with it."""
        super().kill()
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def status(self) -> Status:
        """Return how it is."""
        return query_status(str(self.socket))


class Engine(Program):
    """vLLM's server; not ready yet when it is made.

    Attributes:
        url: of its API; `replica`: name of the replica; `sidecar`: what it writes to.

    """

    def __init__(
        self, model: Path, sidecar: Sidecar, replica: str, cpu: int, otlp: str, environment: Mapping[str, str]
    ) -> None:
        """Start it beside its sidecar; its own tracing goes to the OTLP receiver `otlp`."""
        port = free_port()
        self.url, self.replica, self.sidecar = f"http://{HOST}:{port}", replica, sidecar
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        options = {
            "--served-model-name": MODEL,
            "--load-format": "dummy",
            "--dtype": "bfloat16",
            "--mamba-ssm-cache-dtype": "float32",
            "--max-model-len": "8192",
            "--max-num-batched-tokens": "8192",
            "--max-num-seqs": "4",
            "--otlp-traces-endpoint": f"http://{otlp}",
            "--host": HOST,
            "--port": str(port),
        }
        words = [word for option in options.items() for word in option]
        variables = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(cpu),
            config.ENABLED: "true",
            config.SOCKET: str(sidecar.socket),
            config.REPLICA_ID: replica,
        }
        super().__init__(
            [*command, *words, "--enforce-eager", "--enable-prompt-tokens-details"],
            sidecar.log_path.parent,
            "engine",
            {**environment, **variables},
        )

    def await_serving(self) -> None:
        """Wait until it serves."""
        wait_until(self._serves, f"{self.replica} serves", ENGINE_SECONDS)

    def kill(self) -> None:
        """End it with its engine core and worker, which outlive a server that is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().kill()

    def _serves(self) -> bool:
        assert self.process.poll() is None, f"{self.replica} has ended:\n{self.log[-4000:]}"
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


class Router(Program):
    """vLLM's router in front of servers."""

    def __init__(self, python: Path, folder: Path, policy: str, workers: Sequence[str]) -> None:
        """Start it and wait until it has found its workers."""
        port, metrics = free_port(), free_port()
        self.url = f"http://{HOST}:{port}"
        command = [str(python), "-m", "vllm_router.launch_router", "--worker-urls", *workers, "--policy", policy]
        where = ["--host", HOST, "--port", str(port), "--prometheus-port", str(metrics)]
        super().__init__([*command, *where], folder, f"router-{policy}")
        self.await_ready(lambda: httpx_ok(f"{self.url}/health"))


def httpx_ok(url: str) -> bool:
    """Whether `url` answers that all is well."""
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Fleet:
    """Two engines behind one collector, which sends to Jaeger and writes a capture.

    Attributes:
        capture: the collector's file; `folder`: for the tests' own.

    """

    engines: list[Engine]
    collector: Any
    jaeger: Any
    capture: Path
    folder: Path

    @property
    def evidence(self) -> list[Path]:
        """The files that the sidecars wrote."""
        return [engine.sidecar.out for engine in self.engines]

    def settle(self) -> None:
        """Wait until the sidecars have sent all that they took in."""
        for engine in self.engines:
            wait_until(lambda engine=engine: not engine.sidecar.status().spans_waiting, "spans are sent", 60)  # type: ignore[misc]


def start_fleet(programs: Programs, folder: Path) -> Fleet:
    """Start all of it; the engines at the same time, for most of the time they import."""
    model = folder / "model"
    write_model(model)
    capture = folder / "capture.jsonl"
    jaeger = programs.jaeger()
    collector = programs.collector(
        "dev.yaml", OTEL_CACHE_COLLECTOR_BACKEND=jaeger.grpc, OTEL_CACHE_COLLECTOR_FILE=str(capture)
    )
    cpus = sorted(os.sched_getaffinity(0))
    # Without bytecode caches an import of vLLM takes a minute.
    plain = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    engines = []
    for index in range(2):
        # The path of a Unix socket has at most 107 bytes.
        socket = Path(tempfile.mkdtemp(prefix="oc-")) / "s"
        home = folder / f"replica-{index}"
        sidecar = programs.keep(Sidecar(home, socket, collector.grpc, plain))
        cpu = cpus[index % len(cpus)]
        engines.append(programs.keep(Engine(model, sidecar, f"replica-{index}", cpu, collector.grpc, plain)))
    for engine in engines:
        engine.await_serving()
    return Fleet(engines, collector, jaeger, capture, folder)


def words(first: int, count: int = PROMPT_TOKENS) -> str:
    """Return a prompt of `count` tokens, all of it different where `first` (3 to 511) is."""
    return " ".join(f"w{3 + (first - 3 + index) % 509}" for index in range(count))


def complete(url: str, prompt: str, headers: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Send a prompt; return the request's id, and how many of its tokens vLLM says came from the cache."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=dict(headers or {}), timeout=ANSWER_SECONDS)
    assert answer.status_code == httpx.codes.OK, answer.text
    found = answer.json()
    assert found["usage"]["prompt_tokens"] == PROMPT_TOKENS
    return str(found["id"]), int(found["usage"]["prompt_tokens_details"]["cached_tokens"])
