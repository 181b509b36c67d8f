"""A capture's evidence as events in time, and what is missing of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import polars as pl

from analyzers import model
from otel_cache.semconv import names

Kind = Literal["lookup", "store", "evict"]
_KINDS: Sequence[Kind] = ("lookup", "store", "evict")
_LEFT_OUT = ("end", "trace_id", "parent_span_id", "origin", "positions", "ages")
"""Columns that no event needs."""


class Event(NamedTuple):
    """Time (ns), life, `lookup`, `store` or `evict`, and the row."""

    time: int
    life: int
    kind: Kind
    row: dict[str, Any]


def timeline(capture: model.Capture) -> pl.DataFrame:
    """Return the events of `capture`, each life in the order of its records, the lives merged by time.

    Columns: `time` (ns), `life`, `kind` (index into lookups, stores and evicts), `index` of the row in its frame,
    `sequence`, `number`, `missing`.
    """
    shared = ["life", "sequence", "number", "missing", "start"]
    events = pl.concat(
        frame.select(shared).with_row_index("index").with_columns(kind=pl.lit(kind, pl.Int8))
        for kind, frame in enumerate((capture.lookups, capture.stores, capture.evicts))
    )
    events = events.sort("life", "sequence", maintain_order=True)
    # A life's own order counts for more than its clock.
    latest = pl.max_horizontal("start", pl.lit(0, pl.Int64)).cum_max().over("life")
    return events.with_columns(time=latest).drop("start").sort("time", "life", maintain_order=True)


def events_of(capture: model.Capture, order: pl.DataFrame | None = None) -> Iterator[Event]:
    """Yield the events of `capture` in the `order` of its timeline."""
    order = timeline(capture) if order is None else order
    rows = []
    for kind, frame in enumerate((capture.lookups, capture.stores, capture.evicts)):
        index = order.filter(pl.col("kind") == kind)["index"]
        rows.append(frame.drop(_LEFT_OUT, strict=False)[index].iter_rows(named=True))
    for time, life, kind in order.select("time", "life", "kind").iter_rows():
        yield Event(time, life, _KINDS[kind], next(rows[kind]))


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

    def pass_by(self, event: Event) -> None:
        """Note the holes of a life up to `event`."""
        if not self.any:
            return
        life, row = event.life, event.row
        if row["missing"]:
            self._found[life] = True
        while self._gaps[life] and self._gaps[life][0] <= row["sequence"]:
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
