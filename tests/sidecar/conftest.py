"""A real sidecar, and a socket path that is short enough."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_cache.sidecar.launch import Child, start_child

from .collectors import Collector, HttpCollector


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the developer's own OpenTelemetry settings counts, and no spool of theirs is touched."""
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def socket_path() -> Iterator[str]:
    """Path of a socket that nobody listens on yet, in a folder that is not there yet."""
    folder = tempfile.mkdtemp(prefix="oc-")
    yield str(Path(folder) / "run" / "s")
    shutil.rmtree(folder)


@pytest.fixture
def start(socket_path: str) -> Iterator[Callable[..., Child]]:
    """Start a sidecar on `socket_path`; stopped at the end where the test has not done it."""
    children: list[Child] = []

    def start_one(out: Path | None = None, endpoint: str | None = None) -> Child:
        child = start_child(socket_path, str(out) if out else None, endpoint)
        children.append(child)
        return child

    yield start_one
    for child in children:
        child.stop()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """An OTLP gRPC server."""
    service = Collector()
    service.start()
    yield service
    service.stop()


@pytest.fixture
def http_collector() -> Iterator[HttpCollector]:
    """An OTLP/HTTP server."""
    service = HttpCollector()
    yield service
    service.stop()
