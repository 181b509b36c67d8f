"""Engines in processes of their own, ended with the test."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sidecar.conftest import collector

from .support import Engine, workload

__all__ = ["collector"]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def engine(folder: Path) -> Iterator[Callable[..., Engine]]:
    """Start an engine: `engine("name", scenario)`."""
    engines: list[Engine] = []

    def start(name: str, scenario: dict[str, Any], *options: str, **more: Any) -> Engine:
        engines.append(Engine(folder / name, scenario, *options, **more))
        return engines[-1]

    yield start
    for each in engines:
        each.kill()


@pytest.fixture(scope="session")
def untraced() -> Iterator[Callable[[int], Any]]:
    """What vLLM says of each request of `workload(count)`, from a process without the instrumentation."""
    place = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))
    known: dict[int, Any] = {}

    def run(count: int) -> Any:
        if count not in known:
            known[count] = Engine(place / str(count), workload(count), traced=False).results()
        return known[count]

    yield run
    shutil.rmtree(place)
