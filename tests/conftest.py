"""What all tests share: the vLLM versions, and the lab on each of them."""

import os
import signal
from collections.abc import Iterator, Mapping

import pytest
from vllm_versions import VERSIONS, lane_folder, missing_vllm

from analyzers.vllm_lab.run import LabWorker

WITHOUT = "--without-vllm"
TRACE = "OTEL_CACHE_MOONCAKE"
VECTORS = "OTEL_CACHE_VECTORS"
FILES = {"mooncake": TRACE, "vectors": VECTORS}
"""Markers of tests that need a file which is no part of the project, and the variables that name it."""

# Without its bytecode cache every import of vLLM takes a minute instead of seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whoever starts the tests in the background, or under nohup, has them ignore signals, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one way to leave the tests out that need vLLM."""
    parser.addoption(WITHOUT, action="store_true", help="leave out the tests that run the real vLLM")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to start where vLLM is missing and nobody asked for a run without it."""
    for marker, variable in FILES.items():
        config.addinivalue_line("markers", f"{marker}: needs the file that {variable} names; left out without it")
    config.addinivalue_line("markers", f"vllm: runs the real vLLM; left out with {WITHOUT}")
    if not config.getoption(WITHOUT):
        problem = missing_vllm()
        if problem:
            raise pytest.UsageError(f"{problem}; run `make setup`, or leave its tests out with {WITHOUT}")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which vLLM versions take part."""
    if config.getoption(WITHOUT):
        return f"vLLM: left out ({WITHOUT})"
    return f"vLLM: {', '.join(VERSIONS)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a trace that is not there, and what needs vLLM where that was asked for."""
    for marker, variable in FILES.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not os.environ.get(variable):
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
            config.hook.pytest_deselected(items=needing)
    if not config.getoption(WITHOUT):
        return
    left_out = [item for item in items if item.get_closest_marker("vllm")]
    items[:] = [item for item in items if not item.get_closest_marker("vllm")]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say that a run without vLLM, or without the trace, is not the whole."""
    for marker, variable in FILES.items():
        if not os.environ.get(variable):
            terminalreporter.write_line(f"tests marked {marker!r} were left out: {variable} names no file")
    if config.getoption(WITHOUT):
        terminalreporter.write_line(f"tests that run the real vLLM were left out by {WITHOUT}")


class Labs(Mapping[str, LabWorker]):
    """A lab per vLLM version, started when it is first asked for."""

    def __init__(self, *, instrument: bool) -> None:
        self._instrument = instrument
        self._workers: dict[str, LabWorker] = {}

    def __getitem__(self, version: str) -> LabWorker:
        if version not in self._workers:
            self._workers[version] = LabWorker(lane_folder(version), instrument=self._instrument)
        return self._workers[version]

    def __iter__(self) -> Iterator[str]:
        return iter(VERSIONS)

    def __len__(self) -> int:
        return len(VERSIONS)

    def close(self) -> None:
        """End the children that were started."""
        for worker in self._workers.values():
            worker.close()


@pytest.fixture(scope="session")
def lab() -> Iterator[Labs]:
    """Labs with the instrumentation: `lab["0.28.0"].run(scenario, tmp_path / "spans.jsonl")`."""
    labs = Labs(instrument=True)
    yield labs
    labs.close()


@pytest.fixture(scope="session")
def bare_lab() -> Iterator[Labs]:
    """Labs without the instrumentation, which yield vLLM's results alone: `bare_lab["0.28.0"].run(scenario)`."""
    labs = Labs(instrument=False)
    yield labs
    labs.close()
