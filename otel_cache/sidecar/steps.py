"""A step of a replica between its scheduling and the end of its execution."""

from collections.abc import Sequence

import msgspec

from otel_cache.records import Step, StepDone
from otel_cache.semconv import names
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.requests import NANOSECONDS, Request
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink, Value

MAX_OPEN_STEPS = 64


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
        attributes: dict[str, Value] = {
            names.RECORD_SEQUENCE: record.sequence,
            names.STEP_INDEX: record.index,
            names.STEP_SCHEDULED_REQUESTS: record.scheduled,
            names.STEP_PREFILL_TOKENS: record.prefill_tokens,
            names.STEP_DECODE_TOKENS: record.decode_tokens,
            names.STEP_RUNNING_REQUESTS: record.running,
            names.STEP_WAITING_REQUESTS: record.waiting,
            names.STEP_PREEMPTED_REQUESTS: len(record.preempted),
            names.STEP_POOL_USAGE: record.usage,
            names.STEP_SCHEDULE_DURATION: (end - start if end > start else 0) / NANOSECONDS,
        }
        shape = "step"
        if done is not None:
            attributes[names.STEP_EXECUTE_DURATION] = (done.start - end if done.start > end else 0) / NANOSECONDS
            shape = "step that is done"
            if done.end > end:
                end = done.end
        return SpanData(names.STEP, self.context, None, start, end, attributes, resource, self.links, shape=shape)
