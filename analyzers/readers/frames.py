"""Flat spans to the frames of a capture. Each span counts once, whatever the number of files that hold it."""

from collections.abc import Callable
from typing import Any

import polars as pl

from analyzers.model import Capture
from analyzers.readers import order, rows, schemas
from analyzers.readers.attributes import integer_or
from analyzers.readers.counters import Point
from analyzers.readers.lives import Lives
from analyzers.readers.spans import FOREIGN, WORKER, FlatSpan
from analyzers.readers.tally import BAD_SPAN, SpanError, Tally
from otel_cache.semconv import names

BATCH_ROWS = 65536


class _Table:
    """Rows that become a frame, batch by batch: Python objects are not kept for a whole capture."""

    def __init__(self, schema: schemas.Schema, to_rows: Callable[[FlatSpan], list[rows.Row]]) -> None:
        self.to_rows = to_rows
        self._schema = schema
        self._rows: list[rows.Row] = []
        self._batches: list[pl.DataFrame] = []

    def extend(self, more: list[rows.Row]) -> None:
        self._rows.extend(more)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True)
        series = [
            _series(name, column, dtype) for (name, dtype), column in zip(self._schema.items(), columns, strict=True)
        ]
        self._batches.append(pl.DataFrame(series))
        self._rows.clear()

    def frame(self, index: dict[int, int]) -> pl.DataFrame:
        """Return all rows in the order of reading, `life` as an index."""
        if self._rows:
            self._flush()
        if not self._batches:
            return pl.DataFrame(schema=self._schema)
        life = pl.col("life").replace_strict(index, return_dtype=pl.Int32)
        return pl.concat(self._batches).with_columns(life)


def _series(name: str, column: tuple[Any, ...], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.List):
        # A list of integers prints as JSON; polars makes lists from text 20 times as fast as from Python's lists.
        return pl.Series(name, [str(values) for values in column], pl.String()).str.json_decode(dtype)
    return pl.Series(name, column, dtype)


def _usage_frame(found: list[rows.Row]) -> pl.DataFrame:
    frame = pl.DataFrame(found, schema=schemas.USAGES, orient="row")
    return frame.unique(["trace_id", "span_id"], keep="any").sort("start", "span_id")


def _counter_frame(points: list[Point]) -> pl.DataFrame:
    rows = [(p.series, p.name, p.what, p.time, p.value, p.delta) for p in points]
    return pl.DataFrame(rows, schema=schemas.COUNTERS, orient="row").unique().sort("series", "name", "time", "value")


class CaptureBuilder:
    """Takes spans in any order and gives the capture that they make."""

    def __init__(self, tally: Tally) -> None:
        self.lives = Lives()
        self._tally = tally
        self._seen: set[bytes] = set()
        self._tables = {
            names.LOOKUP: _Table(schemas.LOOKUPS, rows.lookup_rows),
            names.GROUP_LOOKUP: _Table(schemas.GROUPS, rows.group_rows),
            names.STORE: _Table(schemas.STORES, rows.store_rows),
            names.EVICT: _Table(schemas.EVICTS, rows.evict_rows),
            names.STEP: _Table(schemas.STEPS, rows.step_rows),
            names.REQUEST: _Table(schemas.REQUESTS, rows.request_rows),
        }
        self._usages: list[rows.Row] = []
        self._points: list[Point] = []
        self._sampled = 0
        self._unexported = 0

    def add(self, span: FlatSpan | Point) -> None:
        """Take one span, or a point of a counter; count a span if it was read before, or cannot be used."""
        if isinstance(span, Point):
            self._points.append(span)
            return
        if span.life == FOREIGN:
            self._usages.extend(rows.usage_rows(span))
            return
        if span.life == WORKER:
            return
        identity = span.identity
        if identity in self._seen:
            self._tally.duplicates += 1
            self.lives.saw_again(span.life, identity)
            return
        table = self._tables.get(span.name)
        if table is not None:
            try:
                table.extend(table.to_rows(span))
                self._sampled += integer_or(span.attributes, names.SAMPLING_DROPPED, 0)
                self._unexported += integer_or(span.attributes, names.EXPORT_DROPPED, 0)
            except SpanError as error:
                self._tally.skip(BAD_SPAN, span.where, f"{span.name} skipped: {error}")
                return
        self._seen.add(identity)
        self._tally.spans += 1
        self.lives.saw(span.life, span.start, identity)

    def build(self) -> Capture:
        """Return the capture of all spans taken."""
        lives, index = self.lives.index()
        frames = [table.frame(index) for table in self._tables.values()]
        lookups, groups, stores, evicts, steps, requests = frames
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
            sampled_spans=self._sampled,
            unexported_spans=self._unexported,
            spans=self._tally.spans,
            foreign_spans=self._tally.foreign,
            skipped_lines=self._tally.skipped,
            notes=self._tally.notes(),
        )
