"""vLLM's real HTTP server with the tiny model, traced or not."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from analyzers.vllm_lab.model import write_model

START_SECONDS = 1200
STOP_SECONDS = 60


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, *options: str, traced: tuple[str, ...] | None = None) -> Iterator[str]:
    """Serve the tiny model with these options; yield the URL. A prompt of 8,192 tokens is one chunk.

    Args:
        folder: for model, log and state.
        options: of vLLM's server.
        traced: options of `otel-cache run`; None: the plugin is off.

    """
    write_model(folder / "model")
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")),
        *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager", "--mamba-ssm-cache-dtype", "float32"),
        *("--max-model-len", "8192", "--max-num-seqs", "4", "--max-num-batched-tokens", "8192"),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), *options),
    ]
    if traced is not None:
        command = [str(Path(sys.executable).with_name("otel-cache")), "run", *traced, "--", *command]
    log = folder / "log"
    with log.open("wb") as file:
        # A session of its own: it gets no Ctrl-C twice.
        server = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=_environment(folder), cwd=folder, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)
        if server.poll() is None:
            server.kill()
            server.wait()


def _environment(folder: Path) -> Mapping[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "VLLM_PLUGINS"))}
    own = {"XDG_STATE_HOME": str(folder), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return plain | own | {"VLLM_NO_USAGE_STATS": "1"}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
