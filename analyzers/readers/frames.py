"""Batches of typed columns to the frames of a capture. Each span counts once, whatever the number of inputs with it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from analyzers.model import Capture
from analyzers.readers import order, rows, schemas
from analyzers.readers.attributes import integer_or
from analyzers.readers.columns import DTYPES, ODD, Batch
from analyzers.readers.counters import Point
from analyzers.readers.lives import Lives
from analyzers.readers.spans import WORKER, FlatSpan, checked_span
from analyzers.readers.tables import TABLES, with_all_columns
from analyzers.readers.tally import BAD_SPAN, SpanError, Tally
from otel_cache.semconv import names

DROPPED = (names.SAMPLING_DROPPED, names.EXPORT_DROPPED)
IDS = ("trace_id", "span_id")
_INPUT = "input"
_KEPT = {
    "life": pl.Int32(),
    "start": pl.Int64(),
    **dict.fromkeys(IDS, pl.String()),
    **dict.fromkeys(DROPPED, pl.Int64()),
}


def _usage_frame(found: list[rows.Row]) -> pl.DataFrame:
    frame = pl.DataFrame(found, schema=schemas.USAGES, orient="row")
    return frame.unique(["trace_id", "span_id"], keep="any").sort("start", "span_id")


def _counter_frame(points: list[Point]) -> pl.DataFrame:
    found = [(p.series, p.name, p.what, p.time, p.value, p.delta) for p in points]
    return pl.DataFrame(found, schema=schemas.COUNTERS, orient="row").unique().sort("series", "name", "time", "value")


class CaptureBuilder:
    """Takes batches in any order and gives the capture that they make."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._lives = Lives()
        self._inputs: list[str] = []
        self._spans: dict[str, list[pl.DataFrame]] = {}
        self._usages: list[rows.Row] = []
        self._points: list[Point] = []
        self._dropped = [0, 0]

    def add(self, batch: Batch, where: str) -> None:
        """Take a batch; `where` is what notes call its input and, behind it, `line`, `message` or `row`."""
        self._tally.add(batch.tally)
        self._points += batch.points
        for span in batch.foreign:
            self._usages += rows.usage_rows(span)
        if where not in self._inputs:
            self._inputs.append(where)
        handles, bad = self._handles(batch.resources)
        source = pl.lit(self._inputs.index(where), pl.Int32).alias(_INPUT)
        for name, frame in batch.frames.items():
            life = pl.col("resource").replace_strict(handles, default=None, return_dtype=pl.Int32).alias("life")
            placed = frame.with_columns(life, source)
            for resource, line in placed.filter(pl.col("life").is_null()).select("resource", "line").iter_rows():
                self._tally.skip(BAD_SPAN, f"{where} {line}", bad[resource])
            self._spans.setdefault(name, []).append(placed.filter(pl.col("life") != WORKER).drop("resource"))

    def _handles(self, resources: Sequence[Any]) -> tuple[dict[int, int], dict[int, str]]:
        """Return the handle of each resource's life, and of the others what is wrong with them."""
        handles, bad = {}, {}
        for index, attributes in enumerate(resources):
            try:
                handles[index] = self._lives.find(attributes)
            except SpanError as error:
                bad[index] = str(error)
        return handles, bad

    @property
    def is_empty(self) -> bool:
        """Whether no span of otel_cache came so far, be it right or not."""
        return not self._spans

    def build(self) -> Capture:
        """Return the capture of all batches taken."""
        clean: dict[str, pl.DataFrame] = {}
        others: dict[str, tuple[pl.DataFrame, pl.DataFrame]] = {}
        for name, parts in self._spans.items():
            spans = pl.concat(parts, how="diagonal")
            table = TABLES.get(name)
            if table is None:
                clean[name] = spans
                continue
            spans = with_all_columns(spans)
            right = spans.with_columns(table.clean(spans).fill_null(False).alias("right"))["right"]
            clean[name] = spans.filter(right)
            if not right.all():
                others[name] = self._exact(name, spans.filter(~right))
        self._spans.clear()
        clean, others = self._once(clean, others)
        return self._capture({name: _rows(name, clean, others) for name in TABLES})

    def _exact(self, name: str, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of spans that are not plainly right, and every copy that can be used; count the others."""
        table = TABLES[name]
        found: list[rows.Row] = []
        used: list[tuple[Any, ...]] = []
        seen: set[bytes] = set()
        for row in spans.iter_rows(named=True):
            try:
                span = _flat(name, row)
                # A copy gives no rows, but is told by what way it came.
                of_span = [] if span.identity in seen else table.exact(span)
                dropped = [integer_or(span.attributes, each, 0) for each in DROPPED]
            except SpanError as error:
                self._tally.skip(BAD_SPAN, f"{self._inputs[row[_INPUT]]} {row['line']}", f"{name} skipped: {error}")
                continue
            found += of_span
            seen.add(span.identity)
            used.append((span.life, span.start, span.trace_id, span.span_id, *dropped))
        return (
            pl.DataFrame(found, schema=table.schema, orient="row"),
            pl.DataFrame(used, schema=_KEPT, orient="row"),
        )

    def _once(
        self, clean: dict[str, pl.DataFrame], others: dict[str, tuple[pl.DataFrame, pl.DataFrame]]
    ) -> tuple[dict[str, pl.DataFrame], dict[str, tuple[pl.DataFrame, pl.DataFrame]]]:
        """Return spans and rows without what came more than once, and count what is left."""
        kept = [_kept(spans, part) for part, spans in enumerate(clean.values())]
        kept += [_kept(used, len(clean) + part) for part, (_, used) in enumerate(others.values())]
        every = pl.concat(kept) if kept else pl.DataFrame(schema={**_KEPT, "part": pl.Int32(), "row": pl.Int64()})
        spans = every
        # No two hashes are equal: so no two identifiers are, which costs far more to compare.
        if every.select(pl.struct(IDS).hash().n_unique()).item() < every.height:
            spans = every.unique(IDS, keep="first", maintain_order=True)
            self._tally.duplicates += every.height - spans.height
            of_part = spans.partition_by("part", as_dict=True)
            none = spans.clear()
            for part, name in enumerate(clean):
                clean[name] = clean[name][of_part.get((part,), none)["row"]]
            for part, name in enumerate(others, len(clean)):
                made, used = others[name]
                others[name] = made.join(of_part.get((part,), none), on=IDS, how="semi"), used
        self._tally.spans += spans.height
        self._dropped = [int(spans[each].sum()) for each in DROPPED]
        for life, count, start in spans.group_by("life").agg(pl.len(), pl.min("start")).sort("life").iter_rows():
            self._lives.saw(life, count, start)
        sampling = self._lives.sampling()
        if sampling:
            only = every.group_by(IDS).agg(pl.col("life").is_in(sampling).all().alias("only"), pl.first("life"))
            for life in only.filter("only")["life"].unique():
                self._lives.saw_sampled(life)
        return clean, others

    def _capture(self, frames: dict[str, pl.DataFrame]) -> Capture:
        lives, index = self._lives.index()
        life = pl.col("life").replace_strict(index, return_dtype=pl.Int32)
        lookups, groups, stores, evicts, steps, requests = (
            frame.with_columns(life) if frame.height else frame for frame in frames.values()
        )
        groups = order.follow_lookups(groups, lookups)
        evicts = order.place_markers(evicts, [lookups, stores, evicts])
        return Capture(
            lives=lives,
            lookups=order.sort(lookups),
            groups=order.sort(groups),
            stores=order.sort(stores),
            evicts=order.sort(evicts),
            steps=order.sort(steps),
            requests=requests.sort("life", "start", "span_id"),
            usages=_usage_frame(self._usages),
            counters=_counter_frame(self._points),
            sampled_spans=self._dropped[0],
            unexported_spans=self._dropped[1],
            spans=self._tally.spans,
            foreign_spans=self._tally.foreign,
            skipped_lines=self._tally.skipped,
            notes=self._tally.notes(),
        )


def _kept(spans: pl.DataFrame, part: int) -> pl.DataFrame:
    """Return what tells spans apart, and where they are: which frame, which row."""
    present = [name for name in _KEPT if name in spans.columns]
    absent = [pl.lit(0, dtype=pl.Int64).alias(name) for name in _KEPT if name not in spans.columns]
    counts = [pl.col(name).fill_null(0) for name in DROPPED]
    place = pl.lit(part, pl.Int32).alias("part"), pl.int_range(pl.len()).alias("row")
    return spans.select(*present, *absent).with_columns(*counts).select(*_KEPT, *place)


def _rows(
    name: str, clean: dict[str, pl.DataFrame], others: dict[str, tuple[pl.DataFrame, pl.DataFrame]]
) -> pl.DataFrame:
    table = TABLES[name]
    if name not in clean:
        return pl.DataFrame(schema=table.schema)
    made = table.make(clean.pop(name)).select(pl.col(each).cast(dtype) for each, dtype in table.schema.items())
    return pl.concat([made, others[name][0]]) if name in others else made


def _flat(name: str, row: dict[str, Any]) -> FlatSpan:
    """Return a row of typed columns as a span again.

    Raises:
        SpanError: an identifier or a time is none.

    """
    attributes = {each: row[each] for each in DTYPES if row[each] is not None}
    if row[ODD] is not None:
        attributes |= msgspec.json.decode(row[ODD])
    ids = row["trace_id"], row["span_id"], row["parent_span_id"]
    return checked_span(row["life"], *ids, name, row["start"], row["end"], attributes)
