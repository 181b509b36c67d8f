"""Other ends for the hooks: nowhere, and a span of OpenTelemetry's SDK for each record, as vLLM's tracing does it."""

from collections.abc import Callable
from typing import Any

import msgspec

from otel_cache.pipeline.gate import Gate


class Direct:
    """Takes the place of the pipeline: each event goes to a function at once, in the scheduler's thread."""

    def __init__(self, emit: Callable[..., None], end: Callable[[], object]) -> None:
        """Hand events to `emit`, and call `end` when all is over."""
        self.push = emit
        self.gate = Gate()
        self._end = end

    def flush(self, seconds: float = 0.0) -> None:
        """Nothing waits."""

    def close(self, seconds: float = 0.0) -> None:
        """End."""
        self._end()


def discard() -> Callable[[], dict[str, Any]]:
    """Patch vLLM, and throw away what the hooks capture."""
    from otel_cache import instrumentor

    instrumentor._pipeline = Direct(lambda *event: None, lambda: None)  # type: ignore[assignment]
    instrumentor.install()
    return dict


def make_sdk_emit() -> Callable[[], dict[str, Any]]:
    """Patch vLLM with the same hooks, and make an SDK span of each record in the scheduler's thread."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from otel_cache import instrumentor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("benchmark")

    def emit(event: tuple[Any, ...]) -> None:
        pack, *arguments = event
        for record in pack(0, *arguments):
            tracer.start_span(type(record).__name__, attributes=dict(attributes(record))).end()

    instrumentor._pipeline = Direct(emit, provider.shutdown)  # type: ignore[assignment]
    instrumentor.install()
    return dict


def attributes(record: msgspec.Struct) -> Any:
    """Yield the fields of a record as attributes."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, (bytes, dict)):
            value = str(value)
        elif isinstance(value, list):
            value = [str(each) for each in value]
        yield name, value
