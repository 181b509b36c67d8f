"""Collectors and back ends that go away under load and come back: every span arrives."""

import time
from pathlib import Path

import pytest
from conftest import Labs
from sidecar.collectors import Collector as Sink

from .load import EXPORT_SECONDS, Traced, hybrid, ids, spans_of, traced
from .programs import HOST, Programs, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
AWAY_SECONDS = 60.0
RUN_SECONDS = 3.0
"""A scenario, which makes some 600 spans, begins as often as this at the most: a few hundred spans a second."""


def busy(load: Traced, seconds: float, name: str) -> int:
    """Run scenarios for so long; return how many."""
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        load.run(hybrid(f"{name}{count}"))
        count += 1
        time.sleep(max(0.0, began + count * RUN_SECONDS - time.monotonic()))
    return count


class Arrived:
    """Trace and span ids of what a server took, each request read once."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._read = sink, 0
        self.ids: set[tuple[str, str]] = set()

    def all_of(self, sent: set[tuple[str, str]]) -> bool:
        """Whether all of these have come."""
        new = self._sink.requests[self._read :]
        self._read += len(new)
        for request in new:
            for group in request.resource_spans:
                for scope in group.scope_spans:
                    self.ids |= {(span.trace_id.hex(), span.span_id.hex()) for span in scope.spans}
        return self.ids >= sent


def test_every_span_arrives(lab: Labs, programs: Programs, tmp_path: Path) -> None:
    """The agent is stopped for a minute under load, then what it sends to; then both, the agent with spans on disk."""
    sink = Sink()
    sink.start()
    settings = {
        "OTEL_CACHE_COLLECTOR_GATEWAY_HOST": HOST,
        "OTEL_CACHE_COLLECTOR_GATEWAY_PORT": str(sink.port),
        "OTEL_CACHE_COLLECTOR_GATEWAY_INSECURE": "true",
    }
    agent = programs.collector("agent.yaml", **settings)
    try:
        with traced(lab["0.32.0"], tmp_path / "load", f"http://{agent.grpc}") as load:
            load.run(hybrid("first"))
            wait_until(lambda: sink.requests, "the first spans have come", EXPORT_SECONDS)

            assert agent.stop() == 0
            assert busy(load, AWAY_SECONDS, "agent")
            assert load.status.spans_waiting, "the sidecar keeps what the agent does not take"
            agent = programs.again(agent, "agent.yaml")
            load.await_exported()

            sink.stop()
            load.run(hybrid("sink"))
            load.await_exported()
            came = len(sink.requests)
            assert agent.stop() == 0
            agent = programs.again(agent, "agent.yaml")
            load.run(hybrid("again"))
            load.await_exported()
            assert len(sink.requests) == came
            sink.start()
            load.run(hybrid("last"))
            load.await_exported()
            assert load.status.spans_lost == 0
        sent = ids(spans_of(load.out))
        arrived = Arrived(sink)
        wait_until(lambda: arrived.all_of(sent), "every span has come", EXPORT_SECONDS)
        assert arrived.ids == sent
    finally:
        sink.stop()


def test_a_killed_agent_loses_nothing_that_it_took(lab: Labs, programs: Programs, tmp_path: Path) -> None:
    """SIGKILL, with spans that what it sends to has not taken."""
    sink = Sink()
    sink.start()
    sink.stop()
    agent = programs.collector(
        "agent.yaml",
        OTEL_CACHE_COLLECTOR_GATEWAY_HOST=HOST,
        OTEL_CACHE_COLLECTOR_GATEWAY_PORT=str(sink.port),
        OTEL_CACHE_COLLECTOR_GATEWAY_INSECURE="true",
    )
    with traced(lab["0.32.0"], tmp_path / "load", f"http://{agent.grpc}") as load:
        load.run(hybrid("first"))
        load.await_exported()
        agent.kill()
    sent = ids(spans_of(load.out))
    sink.start()
    try:
        programs.again(agent, "agent.yaml")
        arrived = Arrived(sink)
        wait_until(lambda: arrived.all_of(sent), "every span has come", EXPORT_SECONDS)
    finally:
        sink.stop()
