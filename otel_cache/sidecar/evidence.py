"""What is gathered during a step until its record arrives: stores per request, evictions per evictor."""

from collections.abc import Iterable

from otel_cache.records import Chunk, Evict, Reset, Span, Store
from otel_cache.semconv import names
from otel_cache.semconv.positions import format_positions
from otel_cache.sidecar.encoding import encode_bytes, encode_fingerprints
from otel_cache.sidecar.spans import Value

NANOSECONDS_PER_MILLISECOND = 1_000_000


class GatheredStores:
    """The stores of one request in one step; `start` and `end` in ns since the epoch."""

    def __init__(self, first: Store) -> None:
        """Begin with the request's first store of the step."""
        self.request = first.request
        self.sequence = first.sequence
        self.start = self.end = first.time
        self._groups: dict[int, tuple[list[Span], list[Span], list[Span], list[Span]]] = {}
        self._named = first
        self.add(first)

    def add(self, record: Store) -> None:
        """Take another store of the request in."""
        self.end = max(self.end, record.time)
        runs = self._groups.setdefault(record.group, ([], [], [], []))
        for known, new in zip(runs, (record.stored, record.masked, record.missing, record.wanted), strict=True):
            known.extend(run for run in new if run not in known)
        if len(record.fingerprints) > len(self._named.fingerprints):
            self._named = record

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
        if self._named.fingerprints:
            attributes[names.FINGERPRINT_FIRST] = self._named.first_fingerprint
            attributes[names.FINGERPRINT_VALUES] = encode_fingerprints(self._named.fingerprints)
        return attributes


class GatheredEvicts:
    """What one request's allocations pushed out in one step; `start` and `end` in ns since the epoch."""

    def __init__(self, first: Evict) -> None:
        """Begin with the evictor's first eviction of the step."""
        self.evictor = first.evictor
        self.sequence = first.sequence
        self.start = self.end = first.time
        self._groups: dict[int, list[Evict]] = {}
        self.add(first)

    def add(self, record: Evict) -> None:
        """Take another eviction of this evictor in."""
        self.end = max(self.end, record.time)
        self._groups.setdefault(record.group, []).append(record)

    def attributes(self) -> dict[str, Value]:
        """Return the span's attributes: arrays with one entry per group."""
        groups = sorted(self._groups)
        records = [self._groups[group] for group in groups]
        attributes = _evict_arrays(groups, records)
        if self.evictor:
            attributes[names.EVICT_EVICTOR_REQUEST_ID] = self.evictor
        return attributes


def reset_attributes(_: Reset) -> dict[str, Value]:
    """Return the attributes of the span that says that the whole cache was cleared."""
    return {**_evict_arrays([], []), names.EVICT_RESET: True}


def no_evict_attributes() -> dict[str, Value]:
    """Return the attributes of an evict span that names nothing: it only carries what is counted on it."""
    return _evict_arrays([], [])


def _evict_arrays(groups: list[int], records: list[list[Evict]]) -> dict[str, Value]:
    return {
        names.GROUP_IDS: groups,
        names.EVICT_BLOCKS: [sum(len(each.positions) for each in group) for group in records],
        names.EVICT_POSITIONS: [_positions(group) for group in records],
        names.EVICT_FINGERPRINTS: [_fingerprints(group) for group in records],
        names.EVICT_KEYS: [_keys([key for each in group for key in each.keys]) for group in records],
        names.EVICT_AGE: [_oldest(group) for group in records],
    }


def _oldest(records: list[Evict]) -> int:
    return max((age for each in records for age in each.ages), default=0) // NANOSECONDS_PER_MILLISECOND


def _positions(records: list[Evict]) -> str:
    return _join(str(position) for each in records for position in each.positions)


def _fingerprints(records: list[Evict]) -> str:
    return encode_bytes(b"".join(fingerprint for each in records for fingerprint in each.fingerprints))


def _keys(keys: list[bytes]) -> str:
    # Most blocks have no extra key: then nothing is said, rather than a row of commas.
    return _join(encode_bytes(key) for key in keys) if any(keys) else ""


def _join(parts: Iterable[str]) -> str:
    return ",".join(parts)
