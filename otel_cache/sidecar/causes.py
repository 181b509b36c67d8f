"""Why a state was not there: the stores that did not keep it, and the evictions that took it.

A state is named by the fingerprint of its prefix, the digest of its extra keys and its group, so that prompts which
share a position but not a prefix never meet. The tables are bounded: what they forget costs a link, never more.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from otel_cache.records import FINGERPRINT_BYTES, Evict, Lookup, Store
from otel_cache.semconv import names
from otel_cache.sidecar.evidence import GatheredEvicts
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.prints import Prints
from otel_cache.sidecar.recent import Recent
from otel_cache.sidecar.resource import Settings
from otel_cache.sidecar.spans import SpanLink, Value
from otel_cache.sidecar.verdict import Verdict

MAX_ENTRIES = 65_536
MAX_PROBES = 8
"""Positions of the hit grid above a hit that are looked at: the first is where a lookup of attention groups stopped."""
MAX_REFUSED_PROBES = 64
"""Positions below the end that are looked at, where no attention group says how far a prefix is known."""

Cause = Context | tuple[GatheredEvicts, int]
"""The store's span; or an eviction and the block, since the span of an eviction is known once its step is."""

_NOT_KNOWN = bytes(FINGERPRINT_BYTES)
_REFUSED: dict[str, Value] = {names.LINK_REASON: names.LINK_REFUSED}
_EVICTED: dict[str, Value] = {names.LINK_REASON: names.LINK_EVICTED}


class Causes:
    """What a replica's stores did not keep and its evictions took; of each at most `limit` states."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        """Begin with nothing."""
        self._refused: Recent[Context] = Recent(limit)
        self._taken: Recent[tuple[GatheredEvicts, int]] = Recent(limit)
        self._refusing: set[int] = set()

    def __len__(self) -> int:
        """Return how many states are held."""
        return len(self._refused) + len(self._taken)

    def clear(self) -> None:
        """Forget all: the cache was cleared, or records are missing, so that nothing old is the cause for certain."""
        self._refused.clear()
        self._taken.clear()

    def refuses(self, group: int) -> bool:
        """Whether a group has ever not kept a state: else what it stores is of no interest."""
        return group in self._refusing

    def on_store(self, record: Store, prints: Prints, key: bytes, span: Context, settings: Settings) -> None:
        """Note what the store whose span is `span` did not keep, and that what it kept is not refused any more."""
        hash_block = settings.hash_block
        if not hash_block:
            return
        if record.masked or record.missing:
            self._refusing.add(record.group)
        suffix = key + _suffix(record.group)
        grid = settings.alignment or hash_block
        for runs in (record.masked, record.missing):
            for run in runs:
                self._refused.put_all(prints.along(run, grid, hash_block, suffix), span)
        for run in record.stored:
            self._refused.forget(prints.along(run, grid, hash_block, suffix))

    def on_evict(self, record: Evict, gathered: GatheredEvicts) -> None:
        """Note what left the cache."""
        group, prints = _suffix(record.group), record.fingerprints
        for index, block in enumerate(record.blocks):
            fingerprint = prints[index * FINGERPRINT_BYTES : (index + 1) * FINGERPRINT_BYTES]
            if fingerprint != _NOT_KNOWN:
                key = record.keys[index] if record.keys else b""
                self._taken.put(fingerprint + key + group, (gathered, block))

    def find(self, lookup: Lookup, verdict: Verdict, prints: Prints, settings: Settings) -> list[tuple[bool, Cause]]:
        """Return what is to blame for the state that a longer hit needed: (whether it was refused, the cause).

        That state is the limiting groups' at the end of what the others hold. Where no group holds more than the hit
        it is the first state above it that is known to be gone; and in a cache without attention, which has no other
        trace of what was computed, else the last one that was refused.
        """
        hash_block, grid = settings.hash_block, settings.alignment
        if not hash_block or not grid:
            return []

        def at(position: int, groups: Iterable[int], *, refused: bool, taken: bool) -> list[tuple[bool, Cause]]:
            if not (fingerprint := prints.at(position, hash_block)):
                return []
            prefix = fingerprint + lookup.key
            keys = [prefix + _suffix(group) for group in groups]
            found: list[tuple[bool, Cause]] = []
            if refused:
                found += [(True, store) for key in keys if (store := self._refused.get(key)) is not None]
            if taken:
                found += [(False, eviction) for key in keys if (eviction := self._taken.get(key)) is not None]
            return found

        if verdict.reason == names.LIMITED_BY_GROUP_STATE:
            boundary = lookup.hit + lookup.uncached if lookup.uncached else max(verdict.hits.values(), default=0)
            return at(boundary // grid * grid, verdict.limiting or verdict.hits, refused=True, taken=True)
        if verdict.reason != names.LIMITED_BY_NO_MATCH:
            return []
        positions = range((lookup.hit // grid + 1) * grid, verdict.reach + 1, grid)
        for position in positions[:MAX_PROBES]:
            lacking = [group for group, above in enumerate(lookup.above) if above != position]
            if found := at(position, lacking, refused=False, taken=True):
                return found
        if set(settings.kinds) == {names.KIND_MAMBA}:
            for position in reversed(positions[-MAX_REFUSED_PROBES:]):
                if found := at(position, verdict.hits, refused=True, taken=False):
                    return found
        return []


def cause_links(found: Sequence[tuple[bool, Cause]]) -> list[SpanLink]:
    """Return a link for each span that `found` names, with the reason."""
    links: dict[tuple[bool, Context], None] = {}
    for refused, cause in found:
        span = cause if isinstance(cause, Context) else cause[0].span_of(cause[1])
        if span is not None:
            links[refused, span] = None
    return [SpanLink(span, _REFUSED if refused else _EVICTED) for refused, span in links]


@lru_cache(maxsize=1024)
def _suffix(group: int) -> bytes:
    return group.to_bytes(4, "big", signed=True)
