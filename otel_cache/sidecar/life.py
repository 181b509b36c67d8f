"""One life of one replica: its records go in, its finished spans come out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otel_cache.errors import RecordError
from otel_cache.records import (
    FINGERPRINT_BYTES,
    Evict,
    Finished,
    Lookup,
    RepeatedLookup,
    Replica,
    Reset,
    Step,
    StepDone,
    Store,
)
from otel_cache.semconv import names
from otel_cache.sidecar.attempts import OpenLookup, look_up, repeat
from otel_cache.sidecar.causes import Causes, cause_links
from otel_cache.sidecar.evidence import GatheredEvicts, GatheredStores, no_evict_attributes, reset_attributes
from otel_cache.sidecar.ids import Context, new_child, new_root, read_context
from otel_cache.sidecar.lookups import group_attributes, lookup_attributes
from otel_cache.sidecar.requests import Request, RequestTable
from otel_cache.sidecar.resource import build_resource, read_settings
from otel_cache.sidecar.spans import SpanData, SpanLink, Value
from otel_cache.sidecar.steps import MAX_OPEN_STEPS, OpenStep
from otel_cache.sidecar.verdict import judge

MAX_LINKS = 128
MAX_GATHERED = 65_536
"""Stores and evictions that wait for their step's record: many times what a step has, in case none ever comes."""


@dataclass
class Gaps:
    """Records of a process that never arrived, counted since it began."""

    missing: int = 0


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
        self._gathered_records = 0
        self._evicting = False
        self._steps: dict[int, OpenStep] = {}
        self._causes = Causes()
        self._evidence = evidence
        self._reported = 0
        self._seen = 0
        self._open_lookups = 0

    @property
    def evidence(self) -> int:
        """The number of the next span of the evidence."""
        return self._evidence

    @property
    def held(self) -> int:
        """Records of which no span was made yet: what a sidecar that dies now takes with it."""
        return self._open_lookups + self._gathered_records + len(self._steps)

    def on_replica(self, record: Replica) -> None:
        """Take the replica's settings."""
        self._resource = build_resource(self._process, self._handle, record.attributes)
        self._settings = read_settings(record.attributes)
        self._seen = max(self._seen, record.time)

    def on_lookup(self, record: Lookup) -> None:
        """Join the lookup to the one before it, or begin another."""
        if record.end > self._seen:
            self._seen = record.end
        request = self._requests.look_up(record, self._settings)
        verdict = judge(record, self._settings.alignment)
        causes = self._causes.find(record, verdict, request.prints, self._settings)
        self._open(request, *look_up(request.lookup, record, verdict, causes))
        self._drop_surplus()

    def on_repeat(self, record: RepeatedLookup) -> None:
        """Count another attempt of the request's open lookup."""
        if record.end > self._seen:
            self._seen = record.end
        request = self._requests.get(record.request)
        if request is not None and request.lookup is not None:
            request.seen = max(request.seen, record.end)
            self._open(request, *repeat(request.lookup, record))

    def on_store(self, record: Store) -> None:
        """Keep the store until its step is known."""
        if record.time > self._seen:
            self._seen = record.time
        request = self._requests.store(record, self._settings)
        latest = self._gathered[-1] if self._gathered else None
        if type(latest) is GatheredStores and latest.request == record.request:
            latest.add(record)
        else:
            latest = GatheredStores(record, request.context, request.trace_state)
            self._gathered.append(latest)
        self._count_gathered()
        if record.masked or record.missing or self._causes.refuses(record.group):
            self._causes.on_store(record, request.prints, request.key, latest.span, self._settings)

    def on_evict(self, record: Evict) -> None:
        """Keep the eviction until its step is known.

        Raises:
            RecordError: its lists differ in length.

        """
        self._seen = max(self._seen, record.time)
        sizes = {len(record.positions), len(record.fingerprints) / FINGERPRINT_BYTES, len(record.ages)}
        sizes |= {len(record.blocks), len(record.keys or record.blocks)}
        if len(sizes) > 1:
            raise RecordError(f"the lists of eviction {record.sequence} differ in length")
        latest = self._gathered[-1] if self._gathered else None
        if isinstance(latest, GatheredEvicts) and latest.takes(record):
            latest.add(record)
        else:
            latest = GatheredEvicts(record)
            self._gathered.append(latest)
        self._count_gathered()
        self._evicting = True
        self._causes.on_evict(record, latest)

    def on_reset(self, record: Reset) -> None:
        """Keep the reset until its step is known."""
        self._seen = max(self._seen, record.time)
        self._causes.clear()
        self._gathered.append(record)
        self._count_gathered()

    def on_step(self, record: Step) -> None:
        """Close what this step decided, and keep the step itself until it was executed."""
        if record.end > self._seen:
            self._seen = record.end
        context = read_context(record.context) or new_root()
        if self._evicting:
            self._settle_evicts(record, context)
        for name, tokens in record.admitted.items():
            admitted = self._requests.touch(name, record.start)
            admitted.on_admitted(tokens, record.end)
            self._close_lookup(admitted, admitted=tokens)
        if self._gathered:
            self._close_gathered(record, context)
        links, answered = self._take_chunks(record) if record.chunks else ((), ())
        for name in record.preempted:
            if (preempted := self._requests.get(name)) is not None:
                preempted.preemptions += 1
        self._steps[record.index] = OpenStep(record, context, links, answered)
        if len(self._steps) > MAX_OPEN_STEPS:
            self._close_step(self._steps.pop(next(iter(self._steps))), None)
        for name in record.finished:
            if (finished := self._requests.pop(name)) is not None:
                self._close_request(finished, record.start)
        if record.chunks or record.admitted:
            self._drop_surplus()

    def on_done(self, record: StepDone) -> None:
        """Close the step that was executed."""
        if record.end > self._seen:
            self._seen = record.end
        if (step := self._steps.pop(record.index, None)) is not None:
            self._close_step(step, record)

    def on_finished(self, record: Finished) -> None:
        """Take how the request ended; its span is closed when a step says that it is gone."""
        self._seen = max(self._seen, record.time)
        if (request := self._requests.get(record.request)) is not None:
            request.finished = record
            request.seen = max(request.seen, record.time)

    def interrupt(self) -> None:
        """Records are missing: the next step need not be that of what was gathered, so close it without one."""
        self._close_gathered(None, None)
        self._causes.clear()

    def close(self) -> None:
        """Close everything that is open; the life may go on when its process connects again."""
        self.interrupt()
        while self._steps:
            self._close_step(self._steps.pop(next(iter(self._steps))), None)
        for request in self._requests.drain():
            self._close_request(request, request.seen)
        if self._gaps.missing > self._reported:
            self._add_evidence(
                names.EVICT, new_root(), None, (self._seen, self._seen), no_evict_attributes(), sequence=None
            )

    def _take_chunks(self, step: Step) -> tuple[Sequence[SpanLink], Sequence[Request]]:
        """Return the links of a step, and the requests whose first token it computes."""
        links: list[SpanLink] = []
        answered: list[Request] = []
        for chunk in step.chunks:
            request = self._requests.touch(chunk.request, step.end)
            if not request.answered and request.ends_prefill(chunk):
                answered.append(request)
            if len(links) < MAX_LINKS:
                links.append(request.link)
        return links, answered

    def _count_gathered(self) -> None:
        self._gathered_records += 1
        if self._gathered_records >= MAX_GATHERED:
            self._close_gathered(None, None)

    def _drop_surplus(self) -> None:
        while (surplus := self._requests.pop_surplus()) is not None:
            self._close_request(surplus, surplus.seen)

    def _close_request(self, request: Request, end: int) -> None:
        self._close_lookup(request, admitted=None)
        if request.finished is not None:
            end = request.finished.time
        span = SpanData(
            names.REQUEST, request.context, request.parent, request.start, max(request.start, end),
            request.attributes(), self._resource, (), request.parent is not None, request.trace_state,
        )  # fmt: skip
        self._spans.append(span)

    def _close_lookup(self, request: Request, *, admitted: int | None) -> None:
        if (known := request.lookup) is None:
            return
        request.lookup = None
        self._open_lookups -= request.open_attempts
        request.open_attempts = 0
        if (before := known.settle()) is not None:
            self._add_lookup(request, before, None)
        self._add_lookup(request, known, admitted)

    def _open(self, request: Request, opened: OpenLookup, closed: Iterable[OpenLookup]) -> None:
        request.lookup = opened
        self._open_lookups += opened.open_attempts - request.open_attempts
        request.open_attempts = opened.open_attempts
        for lookup in closed:
            self._add_lookup(request, lookup, None)

    def _add_lookup(self, request: Request, known: OpenLookup, admitted: int | None) -> None:
        last = known.last
        context = new_child(request.context)
        attributes = lookup_attributes(last, known.verdict, self._settings, known.attempts, admitted)
        start, end = known.start, max(known.start, known.end)
        links = cause_links(known.causes) if known.causes else ()
        if links:
            attributes[names.LOOKUP_LOST_TO] = links[0].attributes[names.LINK_REASON]
        state = request.trace_state
        self._add_evidence(
            names.LOOKUP, context, request.context, (start, end), attributes, known.sequence, links, state
        )
        for group in group_attributes(last, self._settings):
            self._spans.append(
                SpanData(
                    names.GROUP_LOOKUP, new_child(context), context, start, end, group, self._resource, (), False, state
                )
            )

    def _settle_evicts(self, step: Step, context: Context) -> None:
        """Name the spans of what was evicted, before a lookup that it is the cause of is closed."""
        for gathered in self._gathered:
            if isinstance(gathered, GatheredEvicts):
                gathered.settle(step.owners, step.owner_groups, context)
        self._evicting = False

    def _close_gathered(self, step: Step | None, context: Context | None) -> None:
        # Taken out first: what fails now must not fail again with every step.
        everything, self._gathered = self._gathered, []
        self._gathered_records = 0
        chunks = {chunk.request: chunk for chunk in step.chunks} if step is not None else {}
        for gathered in everything:
            if isinstance(gathered, GatheredStores):
                self._add_evidence(
                    names.STORE, gathered.span, gathered.parent, (gathered.start, gathered.end),
                    gathered.attributes(chunks.get(gathered.request)), gathered.sequence, (), gathered.trace_state,
                )  # fmt: skip
            elif isinstance(gathered, GatheredEvicts):
                if not gathered.settled:
                    gathered.settle({}, {}, context)
                times = (gathered.start, gathered.end)
                for owner, span, attributes in gathered.finish(self._settings.kind):
                    links = self._links([owner])
                    self._add_evidence(names.EVICT, span, context, times, attributes, gathered.sequence, links)
            else:
                span = new_root() if context is None else new_child(context)
                times = (gathered.time, gathered.time)
                self._add_evidence(names.EVICT, span, context, times, reset_attributes(), gathered.sequence)

    def _close_step(self, step: OpenStep, done: StepDone | None) -> None:
        if done is not None:
            for request in step.answered:
                request.on_first_token(done.end)
        if step.record.scheduled:
            self._spans.append(step.span(done, self._resource))

    def _links(self, requests: Iterable[str]) -> list[SpanLink]:
        known = (self._requests.get(request) for request in requests)
        return [request.link for request in known if request is not None]

    def _add_evidence(
        self,
        name: str,
        context: Context,
        parent: Context | None,
        times: tuple[int, int],
        attributes: dict[str, Value],
        sequence: int | None,
        links: Sequence[SpanLink] = (),
        trace_state: str = "",
    ) -> None:
        if sequence is not None:
            attributes[names.RECORD_SEQUENCE] = sequence
        attributes[names.EVIDENCE_NUMBER] = self._evidence
        self._evidence += 1
        if missing := self._gaps.missing - self._reported:
            attributes[names.MISSING_RECORDS] = missing
            self._reported = self._gaps.missing
        start, end = times
        self._spans.append(
            SpanData(name, context, parent, start, end, attributes, self._resource, links, False, trace_state)
        )
