"""One life of one worker: it runs steps, and has no part in the evidence."""

from otel_cache.records import Executed, Replica
from otel_cache.semconv import names
from otel_cache.sidecar.ids import new_child, new_root, read_context
from otel_cache.sidecar.resource import build_resource
from otel_cache.sidecar.spans import SpanData, Value


class WorkerLife:
    """Builds a worker's spans and appends them to `spans`."""

    def __init__(self, process: str, handle: int, spans: list[SpanData]) -> None:
        """Begin a life of the worker `handle` in the process `process`; its settings may come later."""
        self._process = process
        self._handle = handle
        self._spans = spans
        self._resource = build_resource(process, handle, {})
        self._rank: int | None = None

    def on_replica(self, record: Replica) -> None:
        """Take the worker's resource and rank."""
        self._resource = build_resource(self._process, self._handle, record.attributes)
        rank = record.attributes.get(names.WORKER_RANK)
        self._rank = rank if type(rank) is int else None

    def on_executed(self, record: Executed) -> None:
        """Add the span of a step that was run, below that of the step where it is known."""
        parent = read_context(record.context)
        attributes: dict[str, Value] = {names.RECORD_SEQUENCE: record.sequence, names.STEP_INDEX: record.index}
        shape = "execute"
        if self._rank is not None:
            attributes[names.WORKER_RANK] = self._rank
            shape = "execute with a rank"
        context = new_root() if parent is None else new_child(parent)
        start, end = record.start, record.end
        if end < start:
            end = start
        span = SpanData(names.EXECUTE, context, parent, start, end, attributes, self._resource, shape=shape)
        self._spans.append(span)
