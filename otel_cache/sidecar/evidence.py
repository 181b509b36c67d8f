"""What is gathered during a step until its record arrives.

Records that follow one another and are of one kind and one request become one span. A record of another kind in
between begins a new one, so that spans in the order of their first records tell what happened in its true order.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_cache.records import FINGERPRINT_BYTES, Chunk, Evict, Span, Store
from otel_cache.semconv import names
from otel_cache.semconv.positions import format_positions
from otel_cache.sidecar.encoding import encode_bytes, encode_fingerprints
from otel_cache.sidecar.spans import Value

NANOSECONDS_PER_MILLISECOND = 1_000_000


class GatheredStores:
    """Stores of one request in one step, one after the other; `start` and `end` in ns since the epoch."""

    def __init__(self, first: Store) -> None:
        """Begin with the request's first store of the step."""
        self.request = first.request
        self.sequence = first.sequence
        self.start = self.end = first.time
        self._groups: dict[int, tuple[list[Span], list[Span], list[Span], list[Span]]] = {}
        self._first = 0
        self._fingerprints = b""
        self.add(first)

    def add(self, record: Store) -> None:
        """Take another store of the request in."""
        self.end = max(self.end, record.time)
        runs = self._groups.setdefault(record.group, ([], [], [], []))
        for known, new in zip(runs, (record.stored, record.masked, record.missing, record.wanted), strict=True):
            known.extend(run for run in new if run not in known)
        if record.fingerprints:
            self._first = self._first or record.first_fingerprint
            self._fingerprints += record.fingerprints

    def takes(self, record: Store) -> bool:
        """Whether `record` belongs into the same span."""
        return record.request == self.request

    def attributes(self, chunk: Chunk | None) -> dict[str, Value]:
        """Return the span's attributes; without a chunk of the step the state came from elsewhere."""
        groups = sorted(self._groups)
        attributes: dict[str, Value] = {names.REQUEST_ID: self.request, names.GROUP_IDS: groups}
        if chunk is None:
            attributes[names.STORE_ORIGIN] = names.ORIGIN_EXTERNAL
        else:
            attributes[names.STORE_ORIGIN] = names.ORIGIN_PREFILL if chunk.prefill else names.ORIGIN_DECODE
            attributes[names.STORE_CHUNK_START] = chunk.start
            attributes[names.STORE_CHUNK_END] = chunk.end
        keys = (names.STORE_STORED, names.STORE_MASKED, names.STORE_NOT_MATERIALIZED, names.STORE_WANTED)
        for index, key in enumerate(keys):
            attributes[key] = [format_positions(self._groups[group][index]) for group in groups]
        if self._fingerprints:
            attributes[names.FINGERPRINT_FIRST] = self._first
            attributes[names.FINGERPRINT_VALUES] = encode_fingerprints(self._fingerprints)
        return attributes


class GatheredEvicts:
    """Keys that left the cache in one step, one after the other; `start` and `end` in ns since the epoch."""

    def __init__(self, first: Evict) -> None:
        """Begin with the first eviction."""
        self.reason = first.reason
        self.sequence = first.sequence
        self.start = self.end = first.time
        self._records = [first]

    def takes(self, record: Evict) -> bool:
        """Whether `record` belongs with these."""
        return record.reason == self.reason

    def add(self, record: Evict) -> None:
        """Take another eviction in."""
        self.end = max(self.end, record.time)
        self._records.append(record)

    def attributes(self, owners: Mapping[int, str]) -> dict[str, dict[str, Value]]:
        """Return the attributes of a span for each request that `owners` names for the blocks; "" for none."""
        by_owner: dict[str, dict[int, list[_Gone]]] = {}
        for record in self._records:
            size = FINGERPRINT_BYTES
            prints = [record.fingerprints[at : at + size] for at in range(0, len(record.fingerprints), size)]
            keys = record.keys or [b""] * len(record.positions)
            gone = zip(record.positions, prints, keys, record.ages, record.blocks, strict=True)
            for position, fingerprint, key, age, block in gone:
                owner = owners.get(block, "") if self.reason == "allocation" else ""
                groups = by_owner.setdefault(owner, {})
                groups.setdefault(record.group, []).append(_Gone(position, fingerprint, key, age))
        return {owner: self._span(owner, groups) for owner, groups in by_owner.items()}

    def _span(self, owner: str, groups: Mapping[int, list["_Gone"]]) -> dict[str, Value]:
        attributes = _evict_arrays(groups)
        attributes[names.EVICT_REASON] = self.reason
        if owner:
            attributes[names.EVICT_EVICTOR_REQUEST_ID] = owner
        return attributes


class _Gone(NamedTuple):
    position: int
    fingerprint: bytes
    key: bytes
    age: int


def reset_attributes() -> dict[str, Value]:
    """Return the attributes of the span that says that the whole cache was cleared."""
    return {**_evict_arrays({}), names.EVICT_RESET: True}


def no_evict_attributes() -> dict[str, Value]:
    """Return the attributes of an evict span that names nothing: it only carries what is counted on it."""
    return _evict_arrays({})


def _evict_arrays(groups: Mapping[int, Sequence[_Gone]]) -> dict[str, Value]:
    rows = [groups[group] for group in sorted(groups)]
    return {
        names.GROUP_IDS: sorted(groups),
        names.EVICT_BLOCKS: [len(row) for row in rows],
        names.EVICT_POSITIONS: [",".join(str(gone.position) for gone in row) for row in rows],
        names.EVICT_FINGERPRINTS: [encode_bytes(b"".join(gone.fingerprint for gone in row)) for row in rows],
        names.EVICT_KEYS: [_keys(row) for row in rows],
        names.EVICT_AGE: [max(gone.age for gone in row) // NANOSECONDS_PER_MILLISECOND for row in rows],
    }


def _keys(row: Sequence[_Gone]) -> str:
    # Most blocks have no extra key: then nothing is said, rather than a row of commas.
    return ",".join(encode_bytes(gone.key) for gone in row) if any(gone.key for gone in row) else ""
