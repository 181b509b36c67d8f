"""Fixtures of the tests that start the real collector, Jaeger, Prometheus and object storage: `make e2e`.

`programs` starts them for one test, `session_programs` for all:

    def test_something(programs: Programs) -> None:
        jaeger = programs.jaeger()
        collector = programs.collector("agent.yaml", OTEL_CACHE_COLLECTOR_BACKEND=jaeger.grpc)
        prometheus = programs.prometheus({"gateway": collector.spanmetrics})
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts.backends import ensure

from .engines import Fleet, start_fleet
from .programs import Programs, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs the engines last: they take 5 GB, and stay until the end."""
    items.sort(key=lambda item: "fleet" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def backends() -> Mapping[str, Path]:
    """Paths of the programs, by name, such as `collector` or `promtool`. They are built if they are missing."""
    return ensure()


@pytest.fixture
def programs(backends: Mapping[str, Path], tmp_path: Path) -> Iterator[Programs]:
    """Programs that end with the test."""
    with running(backends, tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def session_programs(backends: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that end with the run."""
    with running(backends, tmp_path_factory.mktemp("programs")) as started:
        yield started


@pytest.fixture(scope="session")
def fleet(session_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Two real engines with the tiny model behind one collector, Jaeger behind that."""
    return start_fleet(session_programs, tmp_path_factory.mktemp("fleet"))
