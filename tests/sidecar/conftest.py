"""A real sidecar, and a socket path that is short enough."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_cache.sidecar.launch import Child, start_child


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own OpenTelemetry settings counts."""
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


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
