"""One life of one worker: it runs steps, and has no part in the evidence."""

from otel_cache.records import Executed, Replica
from otel_cache.semconv import names
from otel_cache.sidecar.ids import new_child, new_root, read_context
from otel_cache.sidecar.resource import build_resource
from otel_cache.sidecar.spans import Shape, SpanData, Value

_RAN = Shape(names.RECORD_SEQUENCE, names.STEP_INDEX)
_RAN_BY_RANK = Shape(*_RAN.names, names.WORKER_RANK)


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
        shape = _RAN
        values: tuple[Value, ...] = (record.sequence, record.index)
        if self._rank is not None:
            shape = _RAN_BY_RANK
            values = (record.sequence, record.index, self._rank)
        context = new_root() if parent is None else new_child(parent)
        start, end = record.start, record.end
        if end < start:
            end = start
        self._spans.append(
            SpanData(names.EXECUTE, context, parent, start, end, values, self._resource, (), False, "", shape)
        )
