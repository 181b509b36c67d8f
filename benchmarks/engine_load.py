"""What the instrumentation costs a real engine: vLLM's HTTP server with a tiny model on a CPU, off, on, off, on, ...

    python benchmarks/engine_load.py [--servers 2] [--rounds 4] [--requests 16]

A process of its own sends the requests, streamed, 8 at a time; half of each prompt is shared. Off is measured against
off in the same way: what differs there is noise. Prints one JSON object: requests a second and p99 time to first token,
medians, and ratios.
"""

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PORT = 8077
AT_ONCE = 8
START_SECONDS = 300


class Server:
    """A server of vLLM, started and warmed."""

    def __init__(self, model: str, on: bool) -> None:
        """Start it and wait until it answers."""
        self.on = on
        self.rates: list[float] = []
        self.firsts: list[float] = []
        self._folder = tempfile.mkdtemp()
        environment = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["OTEL_PYTHON_VLLM_CACHE_ENABLED"] = "true" if on else "false"
        environment["OTEL_PYTHON_VLLM_CACHE_OUT"] = str(Path(self._folder) / "spans.jsonl")
        environment["XDG_RUNTIME_DIR"] = self._folder
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "dummy",
            "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192", "--max-num-seqs", "16",
            "--served-model-name", "tiny", "--port", str(PORT), "--mamba-ssm-cache-dtype", "float32",
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._wait()
        self.load(AT_ONCE, 0)

    def load(self, requests: int, seed: int) -> tuple[float, list[float]]:
        """Send requests; return how many a second were answered, and the times to their first tokens."""
        command = [sys.executable, __file__, "--client", str(requests), "--seed", str(seed)]
        said = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        return said["requests_per_second"], said["first_token_seconds"]

    def close(self) -> None:
        """Stop it."""
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                time.sleep(1)
        raise SystemExit("vLLM's server did not start")


def client(requests: int, seed: int) -> None:
    """Send `requests` requests and print what they took."""
    shared = [random.Random(7).randrange(10, 500) for _ in range(1_000)]

    def send(number: int) -> float:
        own = random.Random(seed * 10_000 + number)
        prompt = shared + [own.randrange(10, 500) for _ in range(1_000)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
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


def measure(model: str, on: bool, rounds: int, requests: int, seed: int) -> tuple[list[float], list[float]]:
    """Start a server, send rounds of requests, and stop it."""
    server = Server(model, on)
    try:
        rates: list[float] = []
        firsts: list[float] = []
        for number in range(rounds):
            rate, first = server.load(requests, seed + number + 1)
            rates.append(rate)
            firsts += first
    finally:
        server.close()
    return rates, firsts


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(int(len(values) * 0.99), len(values) - 1)]


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=2, help="of each kind")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--client", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.client:
        client(options.client, options.seed)
        return
    from analyzers.vllm_lab.model import write_model

    model = Path(tempfile.mkdtemp())
    write_model(model)
    found: dict[str, list[tuple[list[float], list[float]]]] = {"off": [], "on": [], "off_again": []}
    for number in range(options.servers):
        for kind in found:
            found[kind].append(measure(str(model), kind == "on", options.rounds, options.requests, number * 100))
    rate = {kind: statistics.median(each for rates, _ in all_ for each in rates) for kind, all_ in found.items()}
    first = {kind: p99([each for _, firsts in all_ for each in firsts]) for kind, all_ in found.items()}
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
