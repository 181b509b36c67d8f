"""What a record costs the scheduler's thread, beside a span of OpenTelemetry's SDK with the same attributes.

    python benchmarks/hot_path.py [--prompt 2000] [--block 16]

Both are taken from live objects of vLLM's own scheduler, in one run, in turns: a lookup (a prompt of which half is
cached), and a step with 64 running requests. Prints one JSON object: microseconds of each, and their ratio.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

os.environ.update({"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"})

TURNS = 41
CALLS = 500


class Capture:
    """Takes the place of the pipeline: keeps the latest call of each hook's inner part, with its live objects."""

    def __init__(self) -> None:
        """Wrap the inner parts."""
        from otel_cache.bindings import hooks, lookup_hooks

        self.lookup: tuple[Any, ...] = ()
        self.step: tuple[Any, ...] = ()
        self.inner_lookup, self.inner_step = lookup_hooks._emit, hooks._step

        def lookup(*arguments: Any) -> None:
            self.lookup = arguments
            self.inner_lookup(*arguments)

        def step(*arguments: Any) -> None:
            self.step = arguments
            self.inner_step(*arguments)

        lookup_hooks._emit, hooks._step = lookup, step


def median_ns(call: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Return what a call of each costs: medians over turns that alternate."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        for index in (0, 1) if turn % 2 else (1, 0):
            function = (call, other)[index]
            start = perf_counter_ns()
            for _ in range(CALLS):
                function()
            taken[index].append((perf_counter_ns() - start) / CALLS)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=2_000)
    parser.add_argument("--block", type=int, default=16)
    options = parser.parse_args()
    from dataclasses import replace

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from benchmarks.scheduler_overhead import Load
    from benchmarks.sdk_emit import Direct
    from otel_cache import instrumentor
    from otel_cache.bindings import lookup_hooks
    from otel_cache.pipeline.ring import Ring
    from otel_cache.records import Batch, Hello
    from otel_cache.semconv import names
    from otel_cache.sidecar.build import ProcessBuilder

    class Nowhere(SpanExporter):
        """The exporter's own work is not the scheduler thread's."""

        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    os.chdir(tempfile.mkdtemp())
    capture = Capture()
    events: list[tuple[Any, ...]] = []
    instrumentor._pipeline = Direct(events.append, lambda: None)  # type: ignore[assignment]
    instrumentor.install()
    load = Load(options.prompt, options.block)
    for _ in range(400):
        load.fill()
        load.step()

    builder = ProcessBuilder(Hello(2, "bench", 1, 1, "0"))
    records: list[Any] = []
    for pack, *arguments in events:
        records += pack(len(records), *arguments)
    spans = {span.name: span for span in builder.add(Batch(0, records))}
    tracer = TracerProvider(active_span_processor=None)
    tracer.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace = tracer.get_tracer("benchmark")

    def sdk(name: str) -> Callable[[], None]:
        attributes = dict(spans[name].attributes)
        return lambda: trace.start_span(name, attributes=attributes).end()

    ring = Ring(1 << 30)

    def fresh() -> None:
        ring._events.clear()

    context = replace(capture.lookup[-1], emit=ring.push)
    lookup_arguments = (*capture.lookup[:-1], context)
    request = capture.lookup[1]

    def lookup() -> None:
        delattr(request, lookup_hooks.OUTCOME)  # as if it were new
        capture.inner_lookup(*lookup_arguments)

    step_arguments = (*capture.step[:-2], time_ns(), context)
    result = {}
    for name, span, call in (
        ("lookup", names.LOOKUP, lookup),
        ("step", names.STEP, lambda: capture.inner_step(*step_arguments)),
    ):
        ours, theirs = median_ns(call, sdk(span))
        fresh()
        result[name] = {"record_us": ours / 1e3, "sdk_span_us": theirs / 1e3, "ratio": theirs / ours}
    print(json.dumps(result))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
