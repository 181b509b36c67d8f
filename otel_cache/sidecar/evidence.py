"""What is gathered during a step until its record arrives.

Records that follow one another and are of one kind and one request become one span. A record of another kind in
between begins a new one, so that spans in the order of their first records tell what happened in its true order.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter

from otel_cache.records import FINGERPRINT_BYTES, Chunk, Evict, Span, Store
from otel_cache.semconv import names
from otel_cache.semconv.positions import format_positions
from otel_cache.sidecar.encoding import encode_bytes, encode_fingerprints
from otel_cache.sidecar.ids import Context, new_child, new_root
from otel_cache.sidecar.spans import Value

NANOSECONDS_PER_MILLISECOND = 1_000_000

_group: Callable[[Store], int] = attrgetter("group")
_RUNS: Sequence[tuple[str, Callable[[Store], list[Span]]]] = (
    (names.STORE_STORED, attrgetter("stored")),
    (names.STORE_MASKED, attrgetter("masked")),
    (names.STORE_NOT_MATERIALIZED, attrgetter("missing")),
    (names.STORE_WANTED, attrgetter("wanted")),
)
_NONE = ("",)
_BLOCKS_OF_KIND = {
    names.KIND_FULL_ATTENTION: names.EVICT_FULL_ATTENTION_BLOCKS,
    names.KIND_SLIDING_WINDOW: names.EVICT_SLIDING_WINDOW_BLOCKS,
    names.KIND_CHUNKED_LOCAL: names.EVICT_CHUNKED_LOCAL_ATTENTION_BLOCKS,
    names.KIND_MAMBA: names.EVICT_MAMBA_BLOCKS,
}


class GatheredStores:
    """Stores of one request in one step, one after the other; `start` and `end` in ns since the epoch.

    `parent` names the request's span, and `span` the one that they become.
    """

    __slots__ = (
        "_fingerprints", "_first", "_records", "end", "parent", "request", "sequence", "span", "start", "trace_state",
    )  # fmt: skip

    def __init__(self, first: Store, parent: Context, trace_state: str) -> None:
        """Begin with the request's first store of the step."""
        self.request = first.request
        self.sequence = first.sequence
        self.parent = parent
        self.span = new_child(parent)
        self.trace_state = trace_state
        self.start = self.end = first.time
        self._records = [first]
        self._first = first.first_fingerprint
        self._fingerprints = first.fingerprints

    def add(self, record: Store) -> None:
        """Take another store of the request in."""
        if record.time > self.end:
            self.end = record.time
        self._records.append(record)
        if record.fingerprints:
            self._first = self._first or record.first_fingerprint
            self._fingerprints += record.fingerprints

    def attributes(self, chunk: Chunk | None) -> dict[str, Value]:
        """Return the span's attributes; without a chunk of the step the state came from elsewhere."""
        records = self._records
        records.sort(key=_group)
        groups = list(dict.fromkeys(map(_group, records)))
        attributes: dict[str, Value] = {names.REQUEST_ID: self.request, names.GROUP_IDS: groups}
        if chunk is None:
            attributes[names.STORE_ORIGIN] = names.ORIGIN_EXTERNAL
        else:
            attributes[names.STORE_ORIGIN] = names.ORIGIN_PREFILL if chunk.prefill else names.ORIGIN_DECODE
            attributes[names.STORE_CHUNK_START] = chunk.start
            attributes[names.STORE_CHUNK_END] = chunk.end
        if len(records) == 1:
            (record,) = records
            attributes[names.STORE_STORED] = [format_positions(record.stored)] if record.stored else _NONE
            attributes[names.STORE_MASKED] = [format_positions(record.masked)] if record.masked else _NONE
            attributes[names.STORE_NOT_MATERIALIZED] = [format_positions(record.missing)] if record.missing else _NONE
            attributes[names.STORE_WANTED] = [format_positions(record.wanted)] if record.wanted else _NONE
        elif len(groups) == len(records):
            for key, runs_of in _RUNS:
                attributes[key] = [*map(format_positions, map(runs_of, records))]
        else:
            for key, runs_of in _RUNS:
                attributes[key] = [format_positions(_union(runs_of, records, group)) for group in groups]
        if self._fingerprints:
            attributes[names.FINGERPRINT_FIRST] = self._first
            attributes[names.FINGERPRINT_VALUES] = encode_fingerprints(self._fingerprints)
        return attributes


def _union(runs: Callable[[Store], list[Span]], records: Sequence[Store], group: int) -> list[Span]:
    """Return the runs of all records of a group, each once, in the order of their coming."""
    return list(dict.fromkeys(run for record in records if record.group == group for run in runs(record)))


class GatheredEvicts:
    """Keys that left the cache in one step, one after the other; `start` and `end` in ns since the epoch."""

    __slots__ = ("_groups", "_owners", "_records", "_spans", "end", "reason", "sequence", "start")

    def __init__(self, first: Evict) -> None:
        """Begin with the first eviction."""
        self.reason = first.reason
        self.sequence = first.sequence
        self.start = self.end = first.time
        self._records = [first]
        self._owners: Mapping[int, str] = {}
        self._groups: Mapping[int, int] = {}
        self._spans: dict[str, Context] = {}

    def takes(self, record: Evict) -> bool:
        """Whether `record` belongs with these."""
        return record.reason == self.reason

    def add(self, record: Evict) -> None:
        """Take another eviction in."""
        self.end = max(self.end, record.time)
        self._records.append(record)

    @property
    def settled(self) -> bool:
        """Whether the spans have names."""
        return bool(self._spans)

    def settle(self, owners: Mapping[int, str], groups: Mapping[int, int], step: Context | None) -> None:
        """The step is over: name a span for each request that `owners` says was given a block, "" for none.

        They are below the span `step`, roots where that is None. `groups` says which group a block was given to.
        """
        self._groups = groups
        self._owners = owners if self.reason == "allocation" else {}
        for record in self._records:
            for owner in map(self._owners.get, record.blocks, repeat("")):
                if owner not in self._spans:
                    self._spans[owner] = new_root() if step is None else new_child(step)

    def span_of(self, block: int) -> Context | None:
        """Return the span that tells of a block, None as long as the step is not over."""
        return self._spans.get(self._owners.get(block, ""))

    def finish(self, kind_of: Callable[[int], str]) -> list[tuple[str, Context, dict[str, Value]]]:
        """Return owner, context and attributes of each span, and let go of the records.

        `kind_of` names the kind of a group.
        """
        by_owner: dict[str, dict[int, _Gone]] = {owner: {} for owner in self._spans}
        for record in self._records:
            owners = list(map(self._owners.get, record.blocks, repeat("")))
            for owner in dict.fromkeys(owners):
                chosen = None if owners.count(owner) == len(owners) else [one == owner for one in owners]
                groups = by_owner[owner]
                if (gone := groups.get(record.group)) is None:
                    gone = groups[record.group] = _Gone()
                gone.add(record, self._groups, chosen)
        self._records = []
        return [(owner, span, self._attributes(owner, by_owner[owner], kind_of)) for owner, span in self._spans.items()]

    def _attributes(self, owner: str, groups: Mapping[int, "_Gone"], kind_of: Callable[[int], str]) -> dict[str, Value]:
        attributes = {**_evict_arrays(groups), **_blocks_by_kind(groups, kind_of)}
        attributes[names.EVICT_REASON] = self.reason
        if owner:
            attributes[names.EVICT_EVICTOR_REQUEST_ID] = owner
            attributes[names.EVICT_EVICTOR_GROUPS] = [_takers(groups[group]) for group in sorted(groups)]
        return attributes


class _Gone:
    """Keys of one group that left the cache for one owner, and which group took each block (None: not said)."""

    __slots__ = ("age", "fingerprints", "keys", "positions", "takers")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.fingerprints = b""
        self.keys: list[bytes] = []
        self.age = 0
        self.takers: list[int | None] = []

    def add(self, record: Evict, takers: Mapping[int, int], chosen: Sequence[bool] | None) -> None:
        """Take those of a record's keys that are `chosen`, all of them where that is None."""
        if chosen is None:
            self.positions += record.positions
            self.fingerprints += record.fingerprints
            self.keys += record.keys or repeat(b"", len(record.positions))
            self.age = max(self.age, *record.ages)
            self.takers += map(takers.get, record.blocks)
            return
        size = FINGERPRINT_BYTES
        prints = (record.fingerprints[at : at + size] for at in range(0, len(record.fingerprints), size))
        self.positions += compress(record.positions, chosen)
        self.fingerprints += b"".join(compress(prints, chosen))
        self.keys += compress(record.keys or repeat(b""), chosen)
        self.age = max(self.age, *compress(record.ages, chosen))
        self.takers += map(takers.get, compress(record.blocks, chosen))


def reset_attributes() -> dict[str, Value]:
    """Return the attributes of the span that says that the whole cache was cleared."""
    return {**_evict_arrays({}), names.EVICT_RESET: True}


def no_evict_attributes() -> dict[str, Value]:
    """Return the attributes of an evict span that names nothing: it only carries what is counted on it."""
    return _evict_arrays({})


def _evict_arrays(groups: Mapping[int, _Gone]) -> dict[str, Value]:
    numbers = sorted(groups)
    rows = [groups[group] for group in numbers]
    return {
        names.GROUP_IDS: numbers,
        names.EVICT_BLOCKS: [len(row.positions) for row in rows],
        names.EVICT_POSITIONS: [",".join(map(str, row.positions)) for row in rows],
        names.EVICT_FINGERPRINTS: [encode_bytes(row.fingerprints) for row in rows],
        # Most blocks have no extra key: then nothing is said, rather than a row of commas.
        names.EVICT_KEYS: [",".join(map(encode_bytes, row.keys)) if any(row.keys) else "" for row in rows],
        names.EVICT_AGE: [row.age // NANOSECONDS_PER_MILLISECOND for row in rows],
    }


def _blocks_by_kind(groups: Mapping[int, _Gone], kind_of: Callable[[int], str]) -> Mapping[str, Value]:
    # Numbers of their own: neither a collector's metrics nor a back end's search can add up an array.
    blocks: dict[str, int] = {}
    for group, row in groups.items():
        name = _BLOCKS_OF_KIND.get(kind_of(group), names.EVICT_OTHER_BLOCKS)
        blocks[name] = blocks.get(name, 0) + len(row.positions)
    return blocks


def _takers(row: _Gone) -> str:
    takers = set(row.takers)
    # A record of an older plugin does not say.
    if len(takers) == 1:
        return "" if None in takers else str(row.takers[0])
    return ",".join(["" if taker is None else str(taker) for taker in row.takers])
