"""One life of one replica: its records go in, its finished spans come out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otel_cache.records import Chunk, Evict, Lookup, Replica, Reset, Step, StepDone, Store
from otel_cache.semconv import names
from otel_cache.sidecar.evidence import GatheredEvicts, GatheredStores, no_evict_attributes, reset_attributes
from otel_cache.sidecar.lookups import group_attributes, lookup_attributes, same_outcome
from otel_cache.sidecar.requests import OpenLookup, Request, RequestTable
from otel_cache.sidecar.resource import build_resource, read_settings
from otel_cache.sidecar.spans import Context, SpanData, Value, new_child, new_root

MAX_LINKS = 128
MAX_OPEN_STEPS = 64
NANOSECONDS = 1_000_000_000


@dataclass
class Gaps:
    """Records of a process that never arrived, counted since it began."""

    missing: int = 0


@dataclass(slots=True)
class _OpenStep:
    record: Step
    context: Context
    links: Sequence[Context]


class ReplicaLife:
    """Builds the spans of one replica in the order of its records and appends them to `spans`."""

    def __init__(self, process: str, handle: int, gaps: Gaps, spans: list[SpanData], evidence: int = 0) -> None:
        """Begin a life of the replica `handle` in the process `process`; its settings may come later.

        `evidence` is the number of its first span of the evidence: not 0 where an earlier sidecar wrote some.
        """
        self._process = process
        self._handle = handle
        self._gaps = gaps
        self._spans = spans
        self._resource = build_resource(process, handle, {})
        self._settings = read_settings({})
        self._requests = RequestTable()
        self._gathered: list[GatheredStores | GatheredEvicts | Reset] = []
        self._steps: dict[int, _OpenStep] = {}
        self._evidence = evidence
        self._reported = 0
        self._seen = 0
        self._open_lookups = 0
        self._open_gathered = 0

    @property
    def evidence(self) -> int:
        """The number of the next span of the evidence."""
        return self._evidence

    @property
    def held(self) -> int:
        """Records of which no span was made yet: what a sidecar that dies now takes with it."""
        return self._open_lookups + self._open_gathered + len(self._steps)

    def on_replica(self, record: Replica) -> None:
        """Take the replica's settings."""
        self._resource = build_resource(self._process, self._handle, record.attributes)
        self._settings = read_settings(record.attributes)
        self._seen = max(self._seen, record.time)

    def on_lookup(self, record: Lookup) -> None:
        """Join the lookup to the one before it, or close that one and begin another."""
        request = self._requests.touch(record.request, record.start, record)
        request.seen = max(request.seen, record.end)
        self._seen = max(self._seen, record.end)
        known = request.lookup
        if known is not None and same_outcome(known.last, record):
            known.attempts += 1
            known.last = record
            self._open_lookups += 1
            return
        self._close_lookup(request, admitted=None)
        request.lookup = OpenLookup(1, record.start, record)
        self._open_lookups += 1
        for surplus in self._requests.surplus():
            self._close_request(surplus, surplus.seen)

    def on_store(self, record: Store) -> None:
        """Keep the store until its step is known."""
        self._requests.touch(record.request, record.time)
        self._seen = max(self._seen, record.time)
        self._open_gathered += 1
        latest = self._gathered[-1] if self._gathered else None
        if isinstance(latest, GatheredStores) and latest.takes(record):
            latest.add(record)
        else:
            self._gathered.append(GatheredStores(record))

    def on_evict(self, record: Evict) -> None:
        """Keep the eviction until its step is known."""
        self._seen = max(self._seen, record.time)
        self._open_gathered += 1
        latest = self._gathered[-1] if self._gathered else None
        if isinstance(latest, GatheredEvicts) and latest.takes(record):
            latest.add(record)
        else:
            self._gathered.append(GatheredEvicts(record))

    def on_reset(self, record: Reset) -> None:
        """Keep the reset until its step is known."""
        self._seen = max(self._seen, record.time)
        self._open_gathered += 1
        self._gathered.append(record)

    def on_step(self, record: Step) -> None:
        """Close what this step decided, and keep the step itself until it was executed."""
        self._seen = max(self._seen, record.end)
        context = new_root()
        for name, tokens in record.admitted.items():
            admitted = self._requests.touch(name, record.start)
            if admitted.hit_tokens is None:
                admitted.hit_tokens = admitted.lookup.last.hit if admitted.lookup is not None else tokens
            self._close_lookup(admitted, admitted=tokens)
        self._close_gathered(record, context)
        links = self._links(chunk.request for chunk in record.chunks[:MAX_LINKS])
        self._steps[record.index] = _OpenStep(record, context, links)
        for chunk in record.chunks:
            self._requests.touch(chunk.request, record.end)
        for name in record.finished:
            if (finished := self._requests.pop(name)) is not None:
                self._close_request(finished, record.start)
        for surplus in self._requests.surplus():
            self._close_request(surplus, surplus.seen)
        while len(self._steps) > MAX_OPEN_STEPS:
            self._close_step(self._steps.pop(next(iter(self._steps))), None)

    def on_done(self, record: StepDone) -> None:
        """Close the step that was executed."""
        self._seen = max(self._seen, record.end)
        if (step := self._steps.pop(record.index, None)) is not None:
            self._close_step(step, record)

    def interrupt(self) -> None:
        """Records are missing: the next step need not be that of what was gathered, so close it without one."""
        self._close_gathered(None, None)

    def close(self) -> None:
        """Close everything that is open; the life may go on when its process connects again."""
        self.interrupt()
        for step in self._steps.values():
            self._close_step(step, None)
        self._steps.clear()
        for request in self._requests.drain():
            self._close_request(request, request.seen)
        if self._gaps.missing > self._reported:
            self._add_evidence(
                names.EVICT, new_root(), None, (self._seen, self._seen), no_evict_attributes(), sequence=None
            )

    def _close_request(self, request: Request, end: int) -> None:
        self._close_lookup(request, admitted=None)
        span = SpanData(
            names.REQUEST, request.context, request.parent, request.start, max(request.start, end),
            request.attributes(), self._resource, remote_parent=request.parent is not None,
        )  # fmt: skip
        self._spans.append(span)

    def _close_lookup(self, request: Request, *, admitted: int | None) -> None:
        if (known := request.lookup) is None:
            return
        request.lookup = None
        self._open_lookups -= known.attempts
        last = known.last
        context = new_child(request.context)
        attributes = lookup_attributes(last, self._settings, known.attempts, admitted)
        times = (known.start, max(known.start, last.end))
        self._add_evidence(names.LOOKUP, context, request.context, times, attributes, last.sequence)
        for group in group_attributes(last, self._settings):
            child = SpanData(names.GROUP_LOOKUP, new_child(context), context, *times, group, self._resource)
            self._spans.append(child)

    def _close_gathered(self, step: Step | None, context: Context | None) -> None:
        chunks = {chunk.request: chunk for chunk in step.chunks} if step is not None and self._gathered else {}
        for gathered in self._gathered:
            match gathered:
                case GatheredStores():
                    self._add_stores(gathered, chunks.get(gathered.request))
                case GatheredEvicts():
                    times = (gathered.start, gathered.end)
                    owners = step.owners if step is not None else {}
                    for owner, attributes in gathered.attributes(owners).items():
                        links = self._links([owner])
                        self._add_step_evidence(context, times, attributes, gathered.sequence, links)
                case Reset():
                    times = (gathered.time, gathered.time)
                    self._add_step_evidence(context, times, reset_attributes(), gathered.sequence, ())
        self._gathered.clear()
        self._open_gathered = 0

    def _add_stores(self, gathered: GatheredStores, chunk: Chunk | None) -> None:
        parent = self._requests.touch(gathered.request, gathered.end).context
        times = (gathered.start, gathered.end)
        attributes = gathered.attributes(chunk)
        self._add_evidence(names.STORE, new_child(parent), parent, times, attributes, gathered.sequence)

    def _close_step(self, step: _OpenStep, done: StepDone | None) -> None:
        record = step.record
        if not record.scheduled:
            return
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
        span = SpanData(names.STEP, step.context, None, record.start, end, attributes, self._resource, step.links)
        self._spans.append(span)

    def _links(self, requests: Iterable[str]) -> list[Context]:
        known = (self._requests.get(request) for request in requests)
        return [request.context for request in known if request is not None]

    def _add_step_evidence(
        self,
        step: Context | None,
        times: tuple[int, int],
        attributes: dict[str, Value],
        sequence: int,
        links: Sequence[Context],
    ) -> None:
        context = new_child(step) if step is not None else new_root()
        self._add_evidence(names.EVICT, context, step, times, attributes, sequence, links)

    def _add_evidence(
        self,
        name: str,
        context: Context,
        parent: Context | None,
        times: tuple[int, int],
        attributes: dict[str, Value],
        sequence: int | None,
        links: Sequence[Context] = (),
    ) -> None:
        if sequence is not None:
            attributes[names.RECORD_SEQUENCE] = sequence
        attributes[names.EVIDENCE_NUMBER] = self._evidence
        self._evidence += 1
        if missing := self._gaps.missing - self._reported:
            attributes[names.MISSING_RECORDS] = missing
            self._reported = self._gaps.missing
        self._spans.append(SpanData(name, context, parent, *times, attributes, self._resource, links))
