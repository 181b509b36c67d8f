"""What the sidecar knows about the requests that are under way on a replica."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from otel_cache.records import Lookup
from otel_cache.semconv import names
from otel_cache.sidecar.spans import Context, Value, new_child, new_root, parse_traceparent

MAX_REQUESTS = 100_000
"""Requests of one replica that are kept at once: one that was never said to finish must not stay for ever."""


@dataclass(slots=True)
class OpenLookup:
    """Consecutive lookups with one outcome: how many, when the first began, and the last of them."""

    attempts: int
    start: int
    last: Lookup


@dataclass(slots=True)
class Request:
    """A request under way; times in ns since the epoch, lengths in tokens, None where not known."""

    id: str
    context: Context
    parent: Context | None
    start: int
    seen: int
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    lookup: OpenLookup | None = None

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of the request's span."""
        attributes: dict[str, Value] = {names.REQUEST_ID: self.id}
        if self.prompt_tokens is not None:
            attributes[names.REQUEST_PROMPT_TOKENS] = self.prompt_tokens
        if self.hit_tokens is not None:
            attributes[names.REQUEST_HIT_TOKENS] = self.hit_tokens
        return attributes


class RequestTable:
    """The requests of one replica, the one that was heard of last at the end."""

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        """Hold at most `limit` requests."""
        self._limit = limit
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def get(self, request: str) -> Request | None:
        """Return a request that is under way, or None."""
        return self._requests.get(request)

    def touch(self, request: str, time: int, lookup: Lookup | None = None) -> Request:
        """Return the request, which was heard of at `time`; begin it where it is new."""
        known = self._requests.get(request)
        if known is None:
            known = self._requests[request] = _begin(request, time, lookup)
        self._requests.move_to_end(request)
        known.seen = max(known.seen, time)
        if lookup is not None and known.prompt_tokens is None:
            known.prompt_tokens = lookup.prompt_tokens
        return known

    def pop(self, request: str) -> Request | None:
        """Take a request out; None where it is not known."""
        return self._requests.pop(request, None)

    def surplus(self) -> Iterator[Request]:
        """Take out and yield the requests beyond the limit, the one heard of longest ago first."""
        while len(self._requests) > self._limit:
            yield self._requests.popitem(last=False)[1]

    def drain(self) -> Iterator[Request]:
        """Take out and yield all requests."""
        while self._requests:
            yield self._requests.popitem(last=False)[1]


def _begin(request: str, time: int, lookup: Lookup | None) -> Request:
    parent = parse_traceparent(lookup.traceparent) if lookup is not None else None
    start = min(lookup.arrival, time) if lookup is not None and lookup.arrival > 0 else time
    return Request(request, new_child(parent) if parent else new_root(), parent, start, start)
