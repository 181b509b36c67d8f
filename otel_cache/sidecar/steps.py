"""The steps of a replica between their scheduling and the end of their execution."""

from collections.abc import Iterator
from dataclasses import dataclass

from otel_cache.records import Step, StepDone
from otel_cache.semconv import names
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.requests import NANOSECONDS, Request
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink, Value

MAX_OPEN_STEPS = 64


@dataclass(slots=True)
class OpenStep:
    """A step that was scheduled; `answered` are the requests whose first token it computes."""

    record: Step
    context: Context
    links: list[SpanLink]
    answered: list[Request]

    def span(self, done: StepDone | None, resource: ReplicaResource) -> SpanData | None:
        """Return the step's span, None for a step that scheduled nothing; `done` is None where it never was."""
        record = self.record
        if not record.scheduled:
            return None
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
            names.STEP_SCHEDULE_DURATION: max(record.end - record.start, 0) / NANOSECONDS,
        }
        end = record.end
        if done is not None:
            attributes[names.STEP_EXECUTE_DURATION] = max(done.start - record.end, 0) / NANOSECONDS
            end = max(end, done.end)
        return SpanData(names.STEP, self.context, None, record.start, end, attributes, resource, self.links)


class OpenSteps:
    """The steps that are under way, by their number."""

    def __init__(self) -> None:
        """Begin without any."""
        self._steps: dict[int, OpenStep] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._steps)

    def add(self, step: OpenStep) -> None:
        """Take a step that was scheduled."""
        self._steps[step.record.index] = step

    def pop(self, index: int) -> OpenStep | None:
        """Take the step of this number out; None where it is not known."""
        return self._steps.pop(index, None)

    def surplus(self) -> Iterator[OpenStep]:
        """Take out and yield the steps beyond the limit, the oldest first."""
        while len(self._steps) > MAX_OPEN_STEPS:
            yield self._steps.pop(next(iter(self._steps)))

    def drain(self) -> Iterator[OpenStep]:
        """Take out and yield all steps."""
        while self._steps:
            yield self._steps.pop(next(iter(self._steps)))
