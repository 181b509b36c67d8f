"""A step of a replica between its scheduling and the end of its execution."""

from collections.abc import Sequence

import msgspec

from otel_cache.records import Step, StepDone
from otel_cache.semconv import names
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.requests import NANOSECONDS, Request
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import Shape, SpanData, SpanLink, Value

MAX_OPEN_STEPS = 64
_SCHEDULED = Shape(
    names.RECORD_SEQUENCE,
    names.STEP_INDEX,
    names.STEP_SCHEDULED_REQUESTS,
    names.STEP_PREFILL_TOKENS,
    names.STEP_DECODE_TOKENS,
    names.STEP_RUNNING_REQUESTS,
    names.STEP_WAITING_REQUESTS,
    names.STEP_PREEMPTED_REQUESTS,
    names.STEP_POOL_USAGE,
    names.STEP_SCHEDULE_DURATION,
)
_EXECUTED = Shape(*_SCHEDULED.names, names.STEP_EXECUTE_DURATION)


class OpenStep(msgspec.Struct, frozen=True, gc=False):
    """A step that was scheduled; `answered` are the requests whose first token it computes."""

    record: Step
    context: Context
    links: Sequence[SpanLink]
    answered: Sequence[Request]

    def span(self, done: StepDone | None, resource: ReplicaResource) -> SpanData:
        """Return the step's span; `done` is None where it was never said to be."""
        record = self.record
        start, end = record.start, record.end
        values: tuple[Value, ...] = (
            record.sequence, record.index, record.scheduled, record.prefill_tokens, record.decode_tokens,
            record.running, record.waiting, len(record.preempted), record.usage,
            (end - start if end > start else 0) / NANOSECONDS,
        )  # fmt: skip
        shape = _SCHEDULED
        if done is not None:
            values += ((done.start - end if done.start > end else 0) / NANOSECONDS,)
            shape = _EXECUTED
            if done.end > end:
                end = done.end
        return SpanData(names.STEP, self.context, None, start, end, values, resource, self.links, False, "", shape)
