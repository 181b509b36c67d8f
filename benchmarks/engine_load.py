"""What the instrumentation costs a real engine: vLLM's HTTP server with a tiny model on a CPU, on and off in turns.

    python benchmarks/engine_load.py [--servers 1] [--rounds 7] [--requests 16]

Three servers run at the same time: on, off, and off again, against which off is measured in the same way: what differs
there is noise. They get the same requests in turns, in random order, and those that are not at turn are stopped. A
process of its own sends them, streamed, 8 at a time; half of each prompt is shared. Prints one JSON object: requests a
second, the median, p99 of the time to the first token, and ratios.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_ONCE = 8
START_SECONDS = 300
IDLE_SECONDS = 0.2
"""Before a server is stopped: by then all that it has captured is sent."""
KINDS = ("off", "on", "off_again")


class Server:
    """A server of vLLM, started and warmed."""

    def __init__(self, model: str, on: bool) -> None:
        """Start it and wait until it answers."""
        self.rates: list[float] = []
        self.firsts: list[float] = []
        self._port = free_port()
        self._folder = tempfile.mkdtemp()
        environment = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["OTEL_PYTHON_VLLM_CACHE_ENABLED"] = "true" if on else "false"
        environment["OTEL_PYTHON_VLLM_CACHE_OUT"] = str(Path(self._folder) / "spans.jsonl")
        environment["XDG_RUNTIME_DIR"] = self._folder
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
        self._send(AT_ONCE, 0)
        self._stop()

    def load(self, requests: int, seed: int) -> None:
        """Send requests, and keep how many a second were answered and the times (s) to their first tokens."""
        self._signal(signal.SIGCONT)
        said = self._send(requests, seed)
        self.rates.append(said["requests_per_second"])
        self.firsts += said["first_token_seconds"]
        self._stop()

    def close(self) -> None:
        """End it."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._process.wait(60)

    def _send(self, requests: int, seed: int) -> Any:
        command = [sys.executable, __file__, "--port", str(self._port), "--client", str(requests), "--seed", str(seed)]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    def _stop(self) -> None:
        time.sleep(IDLE_SECONDS)
        self._signal(signal.SIGSTOP)

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


def client(port: int, requests: int, seed: int) -> None:
    """Send `requests` requests and print what they took."""
    shared = [random.Random(7).randrange(10, 500) for _ in range(1_000)]

    def send(number: int) -> float:
        own = random.Random(seed * 10_000 + number)
        prompt = shared + [own.randrange(10, 500) for _ in range(1_000)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        response.readline()
        first = time.perf_counter() - start
        response.read()
        return first

    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        firsts = list(pool.map(send, range(requests)))
    rate = requests / (time.perf_counter() - start)
    print(json.dumps({"requests_per_second": rate, "first_token_seconds": firsts}))


def measure(model: str, rounds: int, requests: int, number: int) -> dict[str, Server]:
    """Have three servers answer the same rounds of requests, in turns; return them, at their end."""
    servers: dict[str, Server] = {}
    order = random.Random(number)
    try:
        for kind in order.sample(KINDS, len(KINDS)):
            servers[kind] = Server(model, kind == "on")
        for each in range(rounds):
            for kind in order.sample(KINDS, len(KINDS)):
                servers[kind].load(requests, number * 100 + each + 1)
    finally:
        for server in servers.values():
            server.close()
    return servers


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(int(len(values) * 0.99), len(values) - 1)]


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1, help="of each kind, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--client", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.client:
        client(options.port, options.client, options.seed)
        return
    from analyzers.vllm_lab.model import write_model

    model = Path(tempfile.mkdtemp())
    write_model(model)
    all_ = [measure(str(model), options.rounds, options.requests, number) for number in range(options.servers)]
    rate = {kind: statistics.median(each for three in all_ for each in three[kind].rates) for kind in KINDS}
    first = {kind: p99([each for three in all_ for each in three[kind].firsts]) for kind in KINDS}
    result: dict[str, Any] = {
        "requests_per_second": rate,
        "p99_first_token_seconds": first,
        "throughput_ratio": rate["on"] / rate["off"],
        "throughput_ratio_noise": rate["off_again"] / rate["off"],
        "p99_first_token_ratio": first["on"] / first["off"],
        "p99_first_token_ratio_noise": first["off_again"] / first["off"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
