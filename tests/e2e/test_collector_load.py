"""20,000 spans a second through the agent for a minute: nothing refused, nothing lost, memory under its limit."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from conftest import Labs
from sidecar.support import parse_lines

from .gateways import EXPORT
from .load import EXPORT_SECONDS, bulky, hybrid, traced
from .programs import HOST, Programs, free_port, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
RATE = 20_000
SECONDS = 60
MEMORY_MIB = 512
"""What `agent.yaml` allows where nothing else is said."""
IN_FLIGHT = 3
"""Requests that wait for an answer at once: of as many sidecars, each of which sends one after the other."""
BATCH_SPANS = 512
"""As many as a sidecar sends at once."""


class Counting:
    """An OTLP server that takes whatever comes and looks at nothing but its size."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.taken_bytes = 0
        self.port = free_port()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 16 << 20)])
        service, _, method = EXPORT.strip("/").rpartition("/")
        handler = grpc.unary_unary_rpc_method_handler(self._take)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._server.add_insecure_port(f"{HOST}:{self.port}")
        self._server.start()

    def _take(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self.taken_bytes += len(request)
        return b""

    def stop(self) -> None:
        """Go away."""
        self._server.stop(None).wait()


def recorded(lab: Labs, folder: Path) -> list[tuple[bytes, int]]:
    """Return export requests of a real sidecar's spans, each with the number of its spans."""
    with traced(lab["0.32.0"], folder, f"http://{HOST}:{free_port()}") as load:
        load.run(hybrid("h"))
        load.run(bulky("b", 4))
    requests = []
    for request in parse_lines(load.out):
        count = sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)
        requests.append((request.SerializeToString(), count))
    return requests


def batches(requests: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Join requests to such as a busy sidecar sends; Protobuf's messages may be joined by joining their bytes."""
    joined: list[tuple[bytes, int]] = []
    parts: list[bytes] = []
    spans = 0
    for data, count in requests:
        parts.append(data)
        spans += count
        if spans >= BATCH_SPANS:
            joined.append((b"".join(parts), spans))
            parts, spans = [], 0
    return joined


def test_twenty_thousand_spans_a_second(
    lab: Labs, programs: Programs, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """On a machine that is too slow for it the same spans take longer; none may be refused there either."""
    sink = Counting()
    agent = programs.collector(
        "agent.yaml",
        OTEL_CACHE_COLLECTOR_GATEWAY_HOST=HOST,
        OTEL_CACHE_COLLECTOR_GATEWAY_PORT=str(sink.port),
        OTEL_CACHE_COLLECTOR_GATEWAY_INSECURE="true",
    )
    assert agent.environment.get("OTEL_CACHE_COLLECTOR_MEMORY_MIB") is None
    ready = batches(recorded(lab, tmp_path / "recorded"))
    assert ready
    process = psutil.Process(agent.process.pid)
    sent, peak = 0, 0
    with grpc.insecure_channel(agent.grpc) as channel, ThreadPoolExecutor(IN_FLIGHT) as pool:
        export = channel.unary_unary(EXPORT)
        room = threading.Semaphore(IN_FLIGHT)

        def one(data: bytes) -> None:
            try:
                export(data, timeout=120)
            finally:
                room.release()

        answers = []
        began = time.monotonic()
        while sent < RATE * SECONDS:
            data, count = ready[len(answers) % len(ready)]
            time.sleep(max(0.0, began + sent / RATE - time.monotonic()))
            room.acquire()
            answers.append(pool.submit(one, data))
            sent += count
            if len(answers) % 20 == 0:
                # Pages of the queue's file, which the system takes back when it needs them, are no memory of its own.
                memory = process.memory_info()
                peak = max(peak, memory.rss - memory.shared)
        for answer in answers:
            answer.result()
        seconds = time.monotonic() - began
    record_property("spans_per_second", round(sent / seconds))
    record_property("peak_mib", peak >> 20)
    wait_until(lambda: agent.internal("otelcol_exporter_sent_spans") >= sent, "all is sent on", EXPORT_SECONDS)
    assert agent.internal("otelcol_receiver_accepted_spans") == sent
    assert agent.internal("otelcol_receiver_refused_spans") == 0
    assert agent.internal("otelcol_exporter_enqueue_failed_spans") == 0
    assert agent.internal("otelcol_exporter_sent_spans") == sent
    assert peak < MEMORY_MIB << 20
    cost = agent.internal("otelcol_process_cpu_seconds") / sent * 1e6
    print(f"{sent:,} spans in {seconds:.0f} s, {sent / seconds:,.0f} a second, {cost:.0f} us each, {peak >> 20} MiB")
    assert agent.stop() == 0
    sink.stop()
