"""What the instrumentation costs a real engine: vLLM's HTTP server with a tiny model on a CPU, on and off in turns.

    python benchmarks/engine_load.py [--rounds 60] [--requests 4]

Four servers run at the same time, two that are off and two that are on: what the two of a kind differ by is noise. In
each round all get the same requests, one server after the other in random order, from this process, which is none of
theirs; those that are not at turn are stopped. A turn is `--requests` at once, streamed; half of each prompt is shared
by all requests. A round compares its own turns alone, since the machine's speed changes from minute to minute.

Prints one JSON object: on over off, off over off and on over on, each as the median over the rounds with the bounds of
its 95 % confidence interval (bootstrap), of requests a second; and of the p99 of the times to the first token.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

PROMPT_TOKENS = 2_000
OUTPUT_TOKENS = 16
START_SECONDS = 300
IDLE_SECONDS = 0.1
"""Before a server is stopped: by then all that it has captured is sent."""
KINDS = ("off", "off_again", "on", "on_again")
WARMING = 3
RESAMPLED = 2_000


class Server:
    """A server of vLLM. It is stopped but while `load` runs."""

    def __init__(self, model: str, on: bool) -> None:
        """Start it and wait until it answers."""
        self._port = free_port()
        folder = tempfile.mkdtemp()
        environment = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["OTEL_PYTHON_VLLM_CACHE_ENABLED"] = "true" if on else "false"
        environment["OTEL_PYTHON_VLLM_CACHE_OUT"] = str(Path(folder) / "spans.jsonl")
        environment["XDG_RUNTIME_DIR"] = folder
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "dummy",
            "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192", "--max-num-seqs", "16",
            "--served-model-name", "tiny", "--port", str(self._port), "--mamba-ssm-cache-dtype", "float32",
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._wait()
        self._signal(signal.SIGSTOP)

    def load(self, prompts: list[list[int]]) -> tuple[float, list[float]]:
        """Send all prompts at once; return requests a second, and the times (s) to their first tokens."""
        self._signal(signal.SIGCONT)
        with ThreadPoolExecutor(len(prompts)) as pool:
            start = time.perf_counter()
            firsts = list(pool.map(self._send, prompts))
            rate = len(prompts) / (time.perf_counter() - start)
        time.sleep(IDLE_SECONDS)
        self._signal(signal.SIGSTOP)
        return rate, firsts

    def close(self) -> None:
        """End it."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._process.wait(60)

    def _send(self, prompt: list[int]) -> float:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        response.readline()
        first = time.perf_counter() - start
        response.read()
        return first

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                time.sleep(1)
        raise SystemExit("vLLM's server did not start")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prompts_of(round_: int, requests: int) -> list[list[int]]:
    """Return the prompts of a round, as token ids."""
    shared = [random.Random(7).randrange(10, 500) for _ in range(PROMPT_TOKENS // 2)]
    own = random.Random(round_)
    return [[*shared, *(own.randrange(10, 500) for _ in range(PROMPT_TOKENS // 2))] for _ in range(requests)]


def measure(model: str, rounds: int, requests: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return, by server, requests a second of each round, and the times (s) to first tokens, a row for each round."""
    servers: dict[str, Server] = {}
    order = random.Random(0)
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    firsts: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    try:
        for kind in order.sample(KINDS, len(KINDS)):
            servers[kind] = Server(model, kind.startswith("on"))
        for round_ in range(WARMING + rounds):
            prompts = prompts_of(round_, requests)
            for kind in order.sample(KINDS, len(KINDS)):
                rate, first = servers[kind].load(prompts)
                if round_ >= WARMING:
                    rates[kind].append(rate)
                    firsts[kind].append(first)
    finally:
        for server in servers.values():
            server.close()
    return {kind: np.array(rates[kind]) for kind in KINDS}, {kind: np.array(firsts[kind]) for kind in KINDS}


def with_interval(value: Callable[[np.ndarray], float], rounds: int) -> dict[str, float]:
    """Return `value` of all rounds, and the bounds of its 95 % interval over rounds drawn with replacement.

    `value` takes the indexes of rounds.
    """
    draw = np.random.default_rng(0)
    drawn = [value(draw.integers(0, rounds, rounds)) for _ in range(RESAMPLED)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {"ratio": value(np.arange(rounds)), "low": float(low), "high": float(high)}


def compare(rates: dict[str, np.ndarray], firsts: dict[str, np.ndarray]) -> dict[str, dict[str, dict[str, float]]]:
    """Return throughput and p99 to the first token: on over off, and the two of a kind over each other."""
    logs = {kind: np.log(rates[kind]) for kind in KINDS}
    pairs = {
        "on": (("on", "on_again"), ("off", "off_again")),
        "off_again": (("off_again",), ("off",)),
        "on_again": (("on_again",), ("on",)),
    }
    rounds = len(rates["off"])

    def throughput(over: tuple[str, ...], under: tuple[str, ...]) -> dict[str, float]:
        difference = np.mean([logs[kind] for kind in over], axis=0) - np.mean([logs[kind] for kind in under], axis=0)
        return with_interval(lambda chosen: float(np.exp(np.median(difference[chosen]))), rounds)

    def first_token(over: tuple[str, ...], under: tuple[str, ...]) -> dict[str, float]:
        def p99(kinds: tuple[str, ...], chosen: np.ndarray) -> float:
            return float(np.percentile(np.concatenate([firsts[kind][chosen].ravel() for kind in kinds]), 99))

        return with_interval(lambda chosen: p99(over, chosen) / p99(under, chosen), rounds)

    return {
        name: {"throughput": throughput(*pair), "p99_first_token": first_token(*pair)} for name, pair in pairs.items()
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=4, help="of a turn")
    options = parser.parse_args()
    from analyzers.vllm_lab.model import write_model

    model = Path(tempfile.mkdtemp())
    write_model(model)
    rates, firsts = measure(str(model), options.rounds, options.requests)
    medians = {kind: float(np.median(rates[kind])) for kind in KINDS}
    print(json.dumps({"requests_per_second": medians, **compare(rates, firsts)}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
