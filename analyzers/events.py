"""A capture's evidence as events in time, and what is missing of it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import polars as pl

from analyzers import model
from otel_cache.semconv import names

_STORED = ("request_id", "groups", "start", "first", "values", "stored", "masked", "not_materialized", "wanted",
           "chunk_start", "chunk_end")  # fmt: skip
_EVICTED = (
    "start", "group", "reset", "fingerprints", "keys", "evictor_request_id", "evictor_groups", "reason",
)  # fmt: skip
ROWS_AT_A_TIME = 20_000
LOOKUP, STORE, EVICT = range(3)
"""Kinds of events."""
_LOOKUP_LEAVES_OUT = ("end", "trace_id", "parent_span_id")


class Stored(NamedTuple):
    """What a store span says of some groups alike: columns of `Capture.stores`, and the groups."""

    request: str
    groups: tuple[int, ...]
    start: int
    first: int | None
    values: bytes | None
    stored: str
    masked: str
    not_materialized: str
    wanted: str
    chunk_start: int | None
    chunk_end: int | None


class Evicted(NamedTuple):
    """A row of `Capture.evicts`."""

    start: int
    group: int
    reset: bool
    fingerprints: bytes
    keys: bytes
    evictor: str
    evictor_groups: str
    reason: str


# What `_make` does, without a frame of the interpreter for each.
_make_stored = partial(tuple.__new__, Stored)
_make_evicted = partial(tuple.__new__, Evicted)

LookupRow = dict[str, Any]
"""A row of `Capture.lookups`."""


class Event(NamedTuple):
    """Time (ns), life, what the span says, its number among the life's records, and how many were missing then."""

    time: int
    life: int
    row: LookupRow | Stored | Evicted
    sequence: int
    missing: int


class Timeline(NamedTuple):
    """The evidence in time.

    Attributes:
        order: an event per row: `time` (ns), `life`, `kind` (`LOOKUP`, `STORE` or `EVICT`), `index` of the row in its
            frame, `sequence`, `number`, `missing`. Each life is in the order of its records, the lives by time.
        stores: what events need of `Capture.stores`, the rows of a span that differ in their group only as one:
            `groups` list[i32].

    """

    order: pl.DataFrame
    stores: pl.DataFrame


def timeline(capture: model.Capture) -> Timeline:
    """Return the events of `capture` in time."""
    shared = ["life", "sequence", "number", "missing", "start"]
    stores = _joined(capture.stores)
    events = pl.concat(
        frame.select(shared).with_row_index("index").with_columns(kind=pl.lit(kind, pl.Int8))
        for kind, frame in enumerate((capture.lookups, stores, capture.evicts))
    )
    events = events.sort("life", "sequence", maintain_order=True)
    # A life's own order counts for more than its clock.
    latest = pl.max_horizontal("start", pl.lit(0, pl.Int64)).cum_max().over("life")
    order = events.with_columns(time=latest).drop("start").sort("time", "life", maintain_order=True)
    return Timeline(order, stores.select("life", *_STORED))


def _joined(stores: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a store, joined where they say the same of groups that follow one another."""
    same = (
        "life", "sequence", "start", "end", "request_id", "chunk_start", "chunk_end",
        "stored", "masked", "not_materialized", "wanted",
    )  # fmt: skip
    alike = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in same)
    fresh = stores.select(fresh=~alike | (pl.int_range(pl.len()) == 0))["fresh"]
    groups = (
        stores.select("group", run=fresh.cast(pl.Int32).cum_sum()).group_by("run", maintain_order=True).agg("group")
    )
    return stores.filter(fresh).with_columns(groups=groups["group"]).drop("group")


def events_of(line: Timeline, capture: model.Capture) -> Iterator[Event]:
    """Yield the events of `capture` in time."""
    rows: Sequence[Iterator[Any]] = (_lookup_rows(line, capture), stored_of(line), evicted_of(line, capture.evicts))
    for time, life, kind, sequence, missing in happenings(line, "time", "life", "kind", "sequence", "missing"):
        yield Event(time, life, next(rows[kind]), sequence, missing)


def happenings(line: Timeline, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Return some columns of `Timeline.order` of each event."""
    return chain.from_iterable(map(rows_of, line.order.select(columns).iter_slices(ROWS_AT_A_TIME)))


def _lookup_rows(line: Timeline, capture: model.Capture) -> Iterator[LookupRow]:
    """Yield the lookups of a timeline, in time."""
    frame = capture.lookups.drop(_LOOKUP_LEAVES_OUT, strict=False)
    columns = frame.columns
    for part in in_order(frame, of_kind(line, LOOKUP)):
        for row in rows_of(part):
            yield dict(zip(columns, row, strict=True))


def stored_of(line: Timeline) -> Iterator[Stored]:
    """Return what the stores of a timeline say, in time."""
    requests: dict[str, str] = {}
    groups: dict[str, tuple[int, ...]] = {}

    def rows(part: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
        # As text they are made objects in a fraction of the time that lists take.
        written = part.with_columns(pl.col("groups").cast(pl.List(pl.String)).list.join(","))
        for text in written["groups"].unique():
            groups.setdefault(text, tuple(map(int, text.split(","))) if text else ())
        return rows_of(written, requests, groups)

    parts = in_order(line.stores.select(_STORED), of_kind(line, STORE))
    return map(_make_stored, chain.from_iterable(map(rows, parts)))


def evicted_of(line: Timeline, evicts: pl.DataFrame) -> Iterator[Evicted]:
    """Return what the `Capture.evicts` of a timeline say, in time."""
    requests: dict[str, str] = {}
    parts = in_order(evicts.select(_EVICTED), of_kind(line, EVICT))
    return map(_make_evicted, chain.from_iterable(rows_of(part, requests) for part in parts))


def of_kind(line: Timeline, kind: int) -> pl.Series:
    """Return which rows of its frame the events of a kind are, in time."""
    return line.order.filter(pl.col("kind") == kind)["index"]


def rows_of(
    frame: pl.DataFrame,
    requests: dict[str, str] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Return the rows of `frame`, column by column made objects: half the work of making them row by row.

    With `requests`, which is filled, all rows of a request share its id: many are kept. With `groups` those that are
    text become what that has for it.
    """
    columns = [column.to_list() for column in frame.iter_columns()]
    if requests is not None:
        place = next(i for i, name in enumerate(frame.columns) if name in ("request_id", "evictor_request_id"))
        columns[place] = list(map(requests.setdefault, columns[place], columns[place]))
    if groups is not None:
        place = frame.columns.index("groups")
        columns[place] = list(map(groups.__getitem__, columns[place]))
    return zip(*columns, strict=True)


def in_order(frame: pl.DataFrame, order: pl.Series) -> Iterator[pl.DataFrame]:
    """Yield the rows of `frame` in this order, some at a time: put in order all at once they would be there twice."""
    for start in range(0, len(order), ROWS_AT_A_TIME):
        yield frame[order[start : start + ROWS_AT_A_TIME]]


def successors(capture: model.Capture, order: pl.DataFrame) -> dict[int, list[int]]:
    """Return, for each life in a timeline, the lives of the same replica that were over when it began.

    Lives that overlap in time are replicas that share a name, not one after the other.
    """
    times = order.group_by("life").agg(begin=pl.col("time").min(), end=pl.col("time").max()).sort("life")
    spans = {life: (begin, end) for life, begin, end in times.iter_rows()}
    of_replica: dict[str, list[int]] = {}
    for life in spans:
        of_replica.setdefault(capture.lives[life].replica, []).append(life)
    return {
        life: [other for other in of_replica[capture.lives[life].replica] if spans[other][1] < begin]
        for life, (begin, _) in spans.items()
    }


class Holes:
    """Where evidence is missing: which lives have a hole by now, and which have one at all.

    Attributes:
        missing: records and spans that are known to be missing.
        any: some life has a hole.
        kept_back: of these, spans of lives that a collector thinned: it does not count what it keeps back.
        thinned: all that is known of some life has been through a sampler. What that kept back need not leave a hole:
            it may be the newest of a life, or a life as a whole.

    """

    def __init__(self, capture: model.Capture, order: pl.DataFrame) -> None:
        self._found = [False for _ in capture.lives]
        self._ever = [False for _ in capture.lives]
        self._gaps: list[list[int]] = [[] for _ in capture.lives]
        self.kept_back = 0
        samplers = [{names.SAMPLER, names.COLLECTOR_SAMPLER} & set(life.attributes) for life in capture.lives]
        self.thinned = any(samplers)
        told = order.filter(pl.col("missing") != 0)
        self.missing = int(told["missing"].sum())
        for life in told["life"].unique():
            self._ever[life] = True
        numbered = order.filter(pl.col("number").is_not_null())
        number = pl.col("number")
        ends = numbered.group_by("life").agg(least=number.min(), most=number.max(), count=number.n_unique())
        for life, least, most, count in ends.iter_rows():
            if least == 0 and most + 1 == count:
                continue
            self.missing += most + 1 - count
            self.kept_back += most + 1 - count if names.COLLECTOR_SAMPLER in samplers[life] else 0
            own = numbered.filter(pl.col("life") == life)
            self._gaps[life] = gaps(dict(own.select("number", "sequence").iter_rows()))
            self._ever[life] |= bool(self._gaps[life])
        self.any = any(self._ever)

    def pass_by(self, life: int, sequence: int, missing: int) -> None:
        """Note the holes of a life up to an event."""
        if missing:
            self._found[life] = True
        while self._gaps[life] and self._gaps[life][0] <= sequence:
            self._gaps[life].pop(0)
            self._found[life] = True

    def by_now(self, life: int) -> bool:
        """Whether `life` has had a hole."""
        return self._found[life]

    def ever(self, life: int) -> bool:
        """Whether `life` has a hole, earlier or later."""
        return self._ever[life]


def gaps(known: Mapping[int, int]) -> list[int]:
    """Return the sequence numbers from which on evidence is missing, ascending.

    Args:
        known: sequence number of each evidence number that the capture has. Spans are numbered as they are written,
            a lookup when its outcome is known, so a lost one may be older than its neighbours: the earliest of the
            64 before it counts.

    """
    order = sorted(known)
    starts = [-1] if order and order[0] > 0 else []
    starts += [
        min(known[number] for number in order[max(0, index - 64) : index])
        for index in range(1, len(order))
        if order[index] != order[index - 1] + 1
    ]
    return sorted(starts)
