"""What the sidecar knows about the requests that are under way on a replica."""

import re
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from otel_cache.records import Chunk, Finished, Lookup, Store
from otel_cache.semconv import names
from otel_cache.sidecar.attempts import OpenLookup
from otel_cache.sidecar.encoding import encode_bytes
from otel_cache.sidecar.ids import Context, new_child, new_root, parse_traceparent, parse_tracestate
from otel_cache.sidecar.prints import Prints
from otel_cache.sidecar.resource import Settings
from otel_cache.sidecar.spans import SpanLink, Value

MAX_REQUESTS = 32_768
"""Requests of one replica that are kept at once: one that was never said to finish must not stay for ever."""
MAX_BYTES = 128 << 20
"""Fingerprints and ids of one replica's requests that are kept at once."""
NANOSECONDS = 1_000_000_000

_EXTERNAL_ID = re.compile(r"(.+)-[0-9a-f]{8}", re.DOTALL)


class Request(msgspec.Struct, gc=False):
    """A request under way; times in ns since the epoch, lengths in tokens, None where not known.

    `arrival` is 0 where it is not known. `planned` is what the latest lookup was made for: the prefill ends there.
    `begun` says that the request was admitted before, `answered` that it had its first token before, whether or not
    this was seen. `open_attempts` are those of `lookup`; `size` is what `RequestTable` counts for it, in bytes.
    """

    id: str
    context: Context
    parent: Context | None
    start: int
    seen: int
    link: SpanLink
    arrival: int = 0
    trace_state: str = ""
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    cached_tokens: int | None = None
    limited_by: str = ""
    planned: int = 0
    begun: bool = False
    answered: bool = False
    queued: int | None = None
    first_token: int | None = None
    preemptions: int = 0
    session: bytes = b""
    digest: bytes = b""
    key: bytes = b""
    lookup: OpenLookup | None = None
    open_attempts: int = 0
    prints: Prints = msgspec.field(default_factory=Prints)
    finished: Finished | None = None
    size: int = 0

    def on_lookup(self, record: Lookup, settings: Settings) -> None:
        """Take what a lookup says of the request."""
        self.seen = max(self.seen, record.end)
        if self.prompt_tokens is None:
            self.prompt_tokens = record.prompt_tokens
            self.session, self.key = record.session, record.key
            if record.tokens == record.prompt_tokens:
                self.digest = record.digest
        # With output before its prompt was looked up: its beginning was not seen.
        if record.tokens > record.prompt_tokens:
            self.begun = self.answered = True
        self.planned = record.tokens
        first = (record.hit // settings.hash_block + 1) * settings.hash_block if settings.hash_block else 0
        self.prints.look_up(first, record.fingerprints)

    def on_admitted(self, tokens: int, end: int) -> None:
        """A step took the request up with `tokens` computed tokens; it was scheduled at `end`."""
        if self.hit_tokens is None:
            self.hit_tokens = self.lookup.last.hit if self.lookup is not None else tokens
            self.cached_tokens = tokens
            self.limited_by = self.lookup.verdict.reason if self.lookup is not None else ""
        if not self.begun and self.arrival:
            self.queued = max(end - self.arrival, 0)
        self.begun = True

    def ends_prefill(self, chunk: Chunk) -> bool:
        """Return whether the request's first token comes of `chunk`; true but once."""
        if self.answered or not chunk.start < self.planned <= chunk.end:
            return False
        self.answered = True
        return True

    def on_first_token(self, time: int) -> None:
        """The step that computed the first token was processed at `time`."""
        if self.arrival:
            self.first_token = max(time - self.arrival, 0)

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of the request's span."""
        attributes: dict[str, Value] = {names.REQUEST_ID: self.id}
        if self.id[-9:-8] == "-" and (external := _EXTERNAL_ID.fullmatch(self.id)):
            attributes[names.REQUEST_EXTERNAL_ID] = external[1]
        if self.session:
            attributes[names.REQUEST_SESSION_DIGEST] = encode_bytes(self.session)
        if self.digest:
            attributes[names.FINGERPRINT_PROMPT] = encode_bytes(self.digest)
        if self.key:
            attributes[names.KEY_DIGEST] = encode_bytes(self.key)
        if self.prompt_tokens is not None:
            attributes[names.REQUEST_PROMPT_TOKENS] = self.prompt_tokens
            attributes[names.USAGE_INPUT_TOKENS] = self.prompt_tokens
        if self.hit_tokens is not None and self.cached_tokens is not None:
            attributes[names.REQUEST_HIT_TOKENS] = self.hit_tokens
            attributes[names.USAGE_CACHE_READ_TOKENS] = self.cached_tokens
        if self.limited_by:
            attributes[names.LOOKUP_LIMITED_BY] = self.limited_by
        if self.queued is not None:
            attributes[names.REQUEST_QUEUE_DURATION] = self.queued / NANOSECONDS
        if self.first_token is not None:
            attributes[names.REQUEST_TIME_TO_FIRST_TOKEN] = self.first_token / NANOSECONDS
        if (finished := self.finished) is None:
            attributes[names.REQUEST_PREEMPTIONS] = self.preemptions
            return attributes
        attributes[names.REQUEST_PREEMPTIONS] = finished.preemptions
        attributes[names.REQUEST_OUTPUT_TOKENS] = finished.output_tokens
        attributes[names.USAGE_OUTPUT_TOKENS] = finished.output_tokens
        if finished.drafted:
            attributes[names.REQUEST_DRAFTED_TOKENS] = finished.drafted
            attributes[names.REQUEST_ACCEPTED_TOKENS] = finished.accepted
        if finished.reason:
            attributes[names.REQUEST_FINISH_REASON] = finished.reason
        return attributes


class RequestTable:
    """The requests of one replica, the one that was heard of last at the end."""

    def __init__(self, limit: int = MAX_REQUESTS, size: int = MAX_BYTES) -> None:
        """Hold at most `limit` requests, of about `size` bytes."""
        self._limit = limit
        self._max_size = size
        self._size = 0
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._order = self._requests.move_to_end

    def __len__(self) -> int:
        """Return how many requests are held."""
        return len(self._requests)

    def get(self, request: str) -> Request | None:
        """Return a request that is under way, or None."""
        return self._requests.get(request)

    def touch(self, request: str, time: int, lookup: Lookup | None = None) -> Request:
        """Return the request, which was heard of at `time`; begin it where it is new."""
        known = self._requests.get(request)
        if known is None:
            known = self._requests[request] = _begin(request, time, lookup)
            return known
        self._order(request)
        if known.seen < time:
            known.seen = time
        return known

    def look_up(self, record: Lookup, settings: Settings) -> Request:
        """Return the request of a lookup, with what that says of it."""
        request = self.touch(record.request, record.start, record)
        request.on_lookup(record, settings)
        # The lookup itself stays open until the request is admitted: its fingerprints count.
        self._weigh(request, len(record.common) + len(record.plain) + len(record.ladder) + 16 * len(record.passes))
        return request

    def store(self, record: Store, settings: Settings) -> Request:
        """Return the request of a store, with the fingerprints that this names."""
        request = self.touch(record.request, record.time)
        if record.fingerprints and settings.hash_block:
            request.prints.extend(record.first_fingerprint, record.fingerprints, settings.hash_block)
            request.size += len(record.fingerprints)
            self._size += len(record.fingerprints)
        return request

    def pop(self, request: str) -> Request | None:
        """Take a request out; None where it is not known."""
        known = self._requests.pop(request, None)
        if known is not None:
            self._size -= known.size
        return known

    def pop_surplus(self) -> Request | None:
        """Take out the request that was heard of longest ago where there is one beyond the limits, else None."""
        if len(self._requests) <= self._limit and (self._size <= self._max_size or len(self._requests) <= 1):
            return None
        return self.pop(next(iter(self._requests)))

    def drain(self) -> Iterator[Request]:
        """Take out and yield all requests."""
        self._size = 0
        while self._requests:
            yield self._requests.popitem(last=False)[1]

    def _weigh(self, request: Request, more: int) -> None:
        size = request.prints.size + len(request.id) + more
        self._size += size - request.size
        request.size = size


def _begin(name: str, time: int, lookup: Lookup | None) -> Request:
    parent, state, arrival = None, "", 0
    if lookup is not None:
        arrival = max(lookup.arrival, 0)
        if lookup.traceparent and (parent := parse_traceparent(lookup.traceparent)) is not None:
            state = parse_tracestate(lookup.tracestate)
    context = new_child(parent) if parent is not None else new_root()
    start = min(arrival, time) if arrival else time
    return Request(name, context, parent, start, start, SpanLink(context), arrival, state)
