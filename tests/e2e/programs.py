"""Starts the real programs on free ports of the loopback, waits until they are ready, and ends them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from scripts.backends import ROOT

CONFIGS = ROOT / "collector"
READY_SECONDS = 120.0
"""How long a program may take to be ready: long, since only a broken one takes it."""
STOP_SECONDS = 60.0
HOST = "127.0.0.1"
T = TypeVar("T")
P = TypeVar("P", bound="Program")


class ProgramError(Exception):
    """A program did not start, or left; the message ends with its log."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def fetch(url: str, *, headers: Mapping[str, str] | None = None, seconds: float = 30.0) -> str:
    """Return what `url` answers; raises `OSError` (`urllib.error.URLError`) where it does not, or not with 2xx."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers or {})), timeout=seconds) as answer:
        return str(answer.read().decode())


def wait_until(check: Callable[[], T], what: str, seconds: float = READY_SECONDS) -> T:
    """Return the first true result of `check`; `what` is named where there is none in `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if found := check():
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


class Program:
    """A process with its log in a file."""

    def __init__(
        self, command: list[str], folder: Path, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it; `folder` is its working folder and holds the log."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def await_ready(self, check: Callable[[], object]) -> None:
        """Wait until `check` raises no `OSError` and is true."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if self.process.poll() is not None:
                raise ProgramError(f"{self.name} left with {self.process.returncode}:\n{self.log[-4000:]}")
            with contextlib.suppress(OSError):
                if check():
                    return
            if time.monotonic() > deadline:
                self.kill()
                raise ProgramError(f"{self.name} is not ready after {READY_SECONDS:.0f} s:\n{self.log[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> int:
        """End it in good order; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise ProgramError(f"{self.name} did not end on SIGTERM:\n{self.log[-4000:]}") from None
        return self.process.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)


class Collector(Program):
    """The collector with one configuration.

    Attributes:
        grpc: `host:port` of its OTLP receiver for gRPC; `http`: for HTTP. A URL is `http://` and that.
        spanmetrics: `host:port` where Prometheus scrapes the metrics made of spans, where the configuration has them.
        telemetry: `host:port` of the metrics about the collector itself.

    """

    def __init__(
        self, binary: Path, config: Path, folder: Path, environment: Mapping[str, str], more: Sequence[Path] = ()
    ) -> None:
        """Start it on free ports, or on those that `environment` names, and wait until it is healthy.

        Args:
            more: configurations that are merged into `config`.

        """
        health, telemetry = free_port(), free_port()
        ports = {
            "OTEL_CACHE_COLLECTOR_GRPC": f"{HOST}:{free_port()}",
            "OTEL_CACHE_COLLECTOR_HTTP": f"{HOST}:{free_port()}",
            "OTEL_CACHE_COLLECTOR_METRICS": f"{HOST}:{free_port()}",
            "OTEL_CACHE_COLLECTOR_HEALTH": f"{HOST}:{health}",
            "OTEL_CACHE_COLLECTOR_TELEMETRY_HOST": HOST,
            "OTEL_CACHE_COLLECTOR_TELEMETRY_PORT": str(telemetry),
            "OTEL_CACHE_COLLECTOR_QUEUE": str(folder / "queue"),
        }
        self.environment = {**ports, **environment}
        self.grpc = self.environment["OTEL_CACHE_COLLECTOR_GRPC"]
        self.http = self.environment["OTEL_CACHE_COLLECTOR_HTTP"]
        self.spanmetrics = self.environment["OTEL_CACHE_COLLECTOR_METRICS"]
        self.telemetry = f"{HOST}:{self.environment['OTEL_CACHE_COLLECTOR_TELEMETRY_PORT']}"
        configs = [f"--config={path}" for path in (config, *more)]
        super().__init__([str(binary), *configs], folder, config.stem, self.environment)
        where = f"http://{self.environment['OTEL_CACHE_COLLECTOR_HEALTH']}/"
        self.await_ready(lambda: fetch(where))

    def internal(self, name: str) -> float:
        """Return the sum over a metric about the collector itself, such as `otelcol_receiver_accepted_spans`."""
        return sum(sample_values(fetch(f"http://{self.telemetry}/metrics"), name))


class Jaeger(Program):
    """Jaeger with its storage in memory, or another.

    Attributes:
        grpc: `host:port` of its OTLP receiver for gRPC; `http`: for HTTP.
        query: URL of its query API, such as `query + "/api/v3/services"`.

    """

    def __init__(self, binary: Path, folder: Path, storage: Mapping[str, Any]) -> None:
        """Start it on free ports and wait until its API answers; `storage` is a backend as its configuration has it."""
        query = f"{HOST}:{free_port()}"
        self.grpc, self.http, self.query = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}", f"http://{query}"
        config = {
            "extensions": {
                "jaeger_storage": {"backends": {"storage": dict(storage)}},
                "jaeger_query": {
                    "storage": {"traces": "storage"},
                    "http": {"endpoint": query},
                    "grpc": {"endpoint": f"{HOST}:{free_port()}"},
                },
            },
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.grpc}, "http": {"endpoint": self.http}}}},
            "processors": {"batch": {"timeout": "100ms"}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "storage"}},
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {
                    "traces": {
                        "receivers": ["otlp"],
                        "processors": ["batch"],
                        "exporters": ["jaeger_storage_exporter"],
                    }
                },
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "jaeger.yaml"
        path.write_text(yaml.safe_dump(config))
        super().__init__([str(binary), "--config", str(path)], folder, "jaeger")
        self.await_ready(lambda: fetch(f"{self.query}/api/v3/services"))


class Prometheus(Program):
    """Prometheus, which scrapes what it is told every second.

    Attributes:
        url: of its API.

    """

    def __init__(self, binary: Path, folder: Path, targets: Mapping[str, str], rules: list[Path] | None = None) -> None:
        """Start it and wait until it is ready.

        Args:
            targets: job to `host:port` that it scrapes.
            rules: files of rules.

        """
        listen = f"{HOST}:{free_port()}"
        self.url = f"http://{listen}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules or []],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        command = [str(binary), f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        super().__init__([*command, f"--web.listen-address={listen}"], folder, "prometheus")
        self.await_ready(lambda: fetch(f"{self.url}/-/ready"))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: objects with `metric` (labels) and `value` (time, text)."""
        answer = json.loads(fetch(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])


class ObjectStorage(Program):
    """A server that speaks S3's API; the folders in `store` are its buckets, their files the objects.

    Attributes:
        store: the folder.
        variables: what tells a client of it, by environment variables: endpoint, region and credentials.

    """

    def __init__(self, binary: Path, folder: Path) -> None:
        """Start it on a free port and wait until it answers."""
        listen, key, secret, region = f"{HOST}:{free_port()}", "a-key", "a-secret-of-it", "eu-central-1"
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        self.variables = {
            "AWS_ENDPOINT_URL": f"http://{listen}",
            "AWS_REGION": region,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
        }
        options = ["--port", listen, "--region", region, "--quiet", "--health", "/health"]
        environment = {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
        super().__init__(
            [str(binary), *options, "posix", "--nometa", str(self.store)], folder, "object-storage", environment
        )
        self.await_ready(lambda: fetch(f"http://{listen}/health"))


class Programs:
    """Starts programs in folders below one, and ends them all in the end."""

    def __init__(self, paths: Mapping[str, Path], folder: Path) -> None:
        """Take the paths of `scripts.backends.ensure` and a folder to work in."""
        self.paths = paths
        self.folder = folder
        self._started: list[Program] = []

    def collector(self, config: str | Path, *more: Path, **environment: str) -> Collector:
        """Start the collector with a file of `collector/` (`"agent.yaml"`) or any other (a `Path`), and with `more`."""
        path = CONFIGS / config if isinstance(config, str) else config
        return self.keep(Collector(self.paths["collector"], path, self._folder(path.stem), environment, more))

    def again(self, collector: Collector, config: str | Path) -> Collector:
        """Start the collector that was stopped once more: same ports, same queue."""
        return self.collector(config, **collector.environment)

    def jaeger(self, traces: int = 100_000, storage: Mapping[str, Any] | None = None) -> Jaeger:
        """Start Jaeger: with its storage in memory, which holds so many traces, or with `storage`."""
        memory = {"memory": {"max_traces": traces}}
        return self.keep(Jaeger(self.paths["jaeger"], self._folder("jaeger"), storage or memory))

    def prometheus(self, targets: Mapping[str, str], rules: list[Path] | None = None) -> Prometheus:
        """Start Prometheus, scraping `targets` (job to `host:port`)."""
        return self.keep(Prometheus(self.paths["prometheus"], self._folder("prometheus"), targets, rules))

    def objects(self) -> ObjectStorage:
        """Start a server of object storage without any bucket."""
        return self.keep(ObjectStorage(self.paths["objects"], self._folder("objects")))

    def close(self) -> None:
        """End all that was started, the last first."""
        for program in reversed(self._started):
            program.kill()

    def keep(self, program: P) -> P:
        """Take a program that somebody else started: it ends with the others."""
        self._started.append(program)
        return program

    def _folder(self, name: str) -> Path:
        return self.folder / f"{name}-{len(self._started)}"


@contextlib.contextmanager
def running(paths: Mapping[str, Path], folder: Path) -> Iterator[Programs]:
    """Yield `Programs` that end with the block."""
    programs = Programs(paths, folder)
    try:
        yield programs
    finally:
        programs.close()


def sample_values(text: str, name: str, **labels: str) -> list[float]:
    """Return the values of a metric in Prometheus' text format, of the samples that have all `labels`."""
    values = []
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.split("{")[0] == name and all(f'{key}="{wanted}"' in head for key, wanted in labels.items()):
            values.append(float(value))
    return values
