"""Batches of typed columns to the frames of a capture. Each span counts once, whatever the number of inputs with it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from analyzers.model import Capture
from analyzers.readers import copies, identifiers, order, rows, schemas
from analyzers.readers.attributes import integer_or, shorten
from analyzers.readers.columns import DTYPES, ODD, Batch
from analyzers.readers.counters import Point
from analyzers.readers.lives import Lives
from analyzers.readers.otlp_values import DECODE_ERRORS
from analyzers.readers.schemas import AT, PARENT, SPAN, TRACE
from analyzers.readers.spans import WORKER, FlatSpan, checked_span
from analyzers.readers.tables import TABLES, with_all_columns
from analyzers.readers.tally import BAD_SPAN, SpanError, Tally
from otel_cache.semconv import names

DROPPED = (names.SAMPLING_DROPPED, names.EXPORT_DROPPED)
IDENTITY = (*TRACE, SPAN)
PENDING_ROWS = 1 << 16
"""So many spans are made rows at a time: what their attributes take is gone before all are read."""
_INPUT = "input"
_ONE_BY_ONE = (names.STEP, names.EVICT, names.STORE, names.GROUP_LOOKUP, names.LOOKUP, names.REQUEST)
"""What waits is taken out in this order: the largest first, and none before those that ask for its rows."""
_KEPT = {AT: pl.UInt32(), "life": pl.Int32(), "start": pl.Int64(), **dict.fromkeys(IDENTITY, pl.UInt64())}
_DROPPED = {AT: pl.UInt32(), **dict.fromkeys(DROPPED, pl.Int64())}


def _usage_frame(found: list[rows.Row]) -> pl.DataFrame:
    frame = pl.DataFrame(found, schema=schemas.USAGES, orient="row")
    every = frame.sort("start", "span_id", pl.exclude("start", "span_id"))
    return every.unique(["trace_id", "span_id"], keep="first", maintain_order=True)


def _counter_frame(points: list[Point]) -> pl.DataFrame:
    found = [(p.series, p.name, p.what, p.time, p.value, p.delta) for p in points]
    return pl.DataFrame(found, schema=schemas.COUNTERS, orient="row").unique().sort("series", "name", "time", "value")


class CaptureBuilder:
    """Takes batches in any order and gives the capture that they make.

    Spans become rows as they come. Each gets a number, which its rows have in `at`: by that those go whose span had
    come before.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._lives = Lives()
        self._inputs: list[str] = []
        self._pending: dict[str, list[pl.DataFrame]] = {}
        self._numbered = 0
        self._rows: dict[str, list[bytes]] = {name: [] for name in TABLES}
        self._kept: list[pl.DataFrame] = []
        self._dropped: list[pl.DataFrame] = []
        self._usages: list[rows.Row] = []
        self._points: list[Point] = []
        self._dropped_spans = [0, 0]

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
            life = handles.gather(frame["resource"]).alias("life")
            placed = frame.with_columns(life, source)
            if life.null_count():
                for resource, line in placed.filter(life.is_null()).select("resource", "line").iter_rows():
                    self._tally.skip(BAD_SPAN, f"{where} {line}", bad[resource])
            if life.null_count() or (life == WORKER).any():
                placed = placed.filter(life != WORKER)
            self._pending.setdefault(name, []).append(placed.drop("resource"))
        if sum(frame.height for parts in self._pending.values() for frame in parts) >= PENDING_ROWS:
            self._make_rows()

    def _handles(self, resources: Sequence[Any]) -> tuple[pl.Series, dict[int, str]]:
        """Return the handle of each resource's life, null where something is wrong with it, and what that is."""
        handles: list[int | None] = []
        bad = {}
        for index, attributes in enumerate(resources):
            try:
                handles.append(self._lives.find(attributes))
            except SpanError as error:
                handles.append(None)
                bad[index] = str(error)
        return pl.Series(handles, dtype=pl.Int32), bad

    def _make_rows(self) -> None:
        """Make rows of what is pending."""
        while self._pending:
            name, parts = self._pending.popitem()
            spans = with_all_columns(pl.concat(parts, how="diagonal"))
            parts.clear()
            at = pl.int_range(self._numbered, self._numbered + spans.height, dtype=pl.UInt32, eager=True)
            self._numbered += spans.height
            spans = spans.with_columns(at.alias(AT))
            if (table := TABLES.get(name)) is not None:
                right = spans.with_columns(table.clean(spans).fill_null(False).alias("right"))["right"]
                if not right.all():
                    self._make_exact_rows(name, spans.filter(~right))
                    spans = spans.filter(right)
                schema = schemas.of_rows(table.schema).items()
                made = table.make(spans).select(pl.col(each).cast(dtype) for each, dtype in schema)
                self._rows[name].append(_packed(made))
            self._keep(spans.select(*_KEPT), spans.select(pl.col(each).fill_null(0) for each in _DROPPED))

    def _make_exact_rows(self, name: str, spans: pl.DataFrame) -> None:
        """Make rows of spans that are not plainly right; count those that cannot be used."""
        table = TABLES[name]
        found: list[rows.Row] = []
        numbers: list[int] = []
        used: list[tuple[Any, ...]] = []
        for row in spans.iter_rows(named=True):
            try:
                span = _flat(name, row)
                of_span = table.exact(span)
                dropped = [integer_or(span.attributes, each, 0) for each in DROPPED]
            except SpanError as error:
                self._tally.skip(BAD_SPAN, f"{self._inputs[row[_INPUT]]} {row['line']}", f"{name} skipped: {error}")
                continue
            found += of_span
            numbers += [row[AT]] * len(of_span)
            used.append((row[AT], span.life, span.start, *(row[each] or 0 for each in IDENTITY), *dropped))
        exact = pl.DataFrame(found, schema=schemas.of_exact_rows(table.schema), orient="row")
        high, low = identifiers.numbers_in("trace_id", 2)
        (own,), (parent,) = identifiers.numbers_in("span_id", 1), identifiers.numbers_in("parent_span_id", 1)
        numbered = exact.with_columns(
            pl.Series(AT, numbers, pl.UInt32),
            *(each.alias(to) for each, to in zip((high, low, own, parent), (*IDENTITY, PARENT), strict=True)),
        )
        self._rows[name].append(_packed(numbered.select(*schemas.of_rows(table.schema))))
        kept = pl.DataFrame(used, schema={**_KEPT, **_DROPPED}, orient="row")
        self._keep(kept.select(*_KEPT), kept.select(*_DROPPED))

    def _keep(self, kept: pl.DataFrame, dropped: pl.DataFrame) -> None:
        self._kept.append(kept)
        self._dropped.append(dropped.filter(pl.any_horizontal(pl.col(DROPPED) != 0)))

    def build(self) -> Capture:
        """Return the capture of all batches taken."""
        self._make_rows()
        counting = self._count_once()
        lives, index = self._lives.index()
        of_handle = pl.Series([index.get(each) for each in range(max(index, default=-1) + 1)], dtype=pl.Int32)

        def rows_of(name: str) -> pl.DataFrame:
            schema = schemas.of_rows(TABLES[name].schema)
            parts = [pl.read_ipc(part) for part in self._rows[name]]
            frame = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
            if counting is not None:
                frame = frame.filter(counting.gather(frame[AT]))
            return frame.with_columns(of_handle.gather(frame["life"]).alias("life"))

        made = {}
        for name in _ONE_BY_ONE:
            frame = rows_of(name)
            if name == names.EVICT:
                frame = order.place_markers(frame, map(rows_of, (names.LOOKUP, names.STORE, names.EVICT)))
            elif name == names.GROUP_LOOKUP:
                frame = order.follow_lookups(frame, rows_of(names.LOOKUP))
            del self._rows[name]
            by = order.BY_TIME if name == names.REQUEST else order.BY_RECORD
            made[name] = _finished(order.sort(frame, by), TABLES[name].schema)
        return Capture(
            lives=lives,
            lookups=made[names.LOOKUP],
            groups=made[names.GROUP_LOOKUP],
            stores=made[names.STORE],
            evicts=made[names.EVICT],
            steps=made[names.STEP],
            requests=made[names.REQUEST],
            usages=_usage_frame(self._usages),
            counters=_counter_frame(self._points),
            sampled_spans=self._dropped_spans[0],
            unexported_spans=self._dropped_spans[1],
            spans=self._tally.spans,
            foreign_spans=self._tally.foreign,
            skipped_lines=self._tally.skipped,
            notes=self._tally.notes(),
        )

    def _count_once(self) -> pl.Series | None:
        """Count the spans; return which of the numbers count, one of those of each span; None: all do."""
        every = pl.concat(self._kept) if self._kept else pl.DataFrame(schema=_KEPT)
        dropped = pl.concat(self._dropped) if self._dropped else pl.DataFrame(schema=_DROPPED)
        self._kept.clear()
        spans, counting = every, None
        # No two hashes are equal: so no two identifiers are, which costs more to compare.
        hashes = every.select(pl.struct(IDENTITY).hash().sort()).to_series()
        twice = (hashes == hashes.shift()).any()
        del hashes
        if twice:
            counting = self._choose(every, dropped)
            spans = every.filter(counting.gather(every[AT]))
            self._tally.duplicates += every.height - spans.height
            dropped = dropped.filter(counting.gather(dropped[AT]))
        self._tally.spans += spans.height
        self._dropped_spans = [int(dropped[each].sum()) for each in DROPPED]
        for life, count, start in spans.group_by("life").agg(pl.len(), pl.min("start")).sort("life").iter_rows():
            self._lives.saw(life, count, start)
        sampling = self._lives.sampling()
        if sampling:
            only = every.group_by(IDENTITY).agg(pl.col("life").is_in(sampling).all().alias("only"), pl.first("life"))
            for life in only.filter("only")["life"].unique():
                self._lives.saw_sampled(life)
        return counting

    def _choose(self, every: pl.DataFrame, dropped: pl.DataFrame) -> pl.Series:
        """Return which of the numbers count: those of spans that came once, and one of each other's."""
        often = every.select(pl.struct(IDENTITY).is_duplicated()).to_series()
        found = every.filter(often)
        alike = pl.repeat(False, self._numbered, eager=True).scatter(found[AT], True)
        rows = (pl.read_ipc(part) for parts in self._rows.values() for part in parts)
        rank = pl.Series(self._lives.ranks(), dtype=pl.Int32)
        ranked = found.with_columns(rank.gather(found["life"]).alias("life")).join(dropped, on=AT, how="left")
        chosen, differing = copies.choose(ranked, copies.contents(rows, alike), IDENTITY)
        self._tally.differing += differing
        once = every.filter(~often)[AT]
        return pl.repeat(False, self._numbered, eager=True).scatter(pl.concat([once, chosen]), True)


def _packed(made: pl.DataFrame) -> bytes:
    """Return rows as they wait for the rest of the input, in a third of the memory."""
    return made.write_ipc(None, compression="zstd").getvalue()


def _finished(made: pl.DataFrame, schema: schemas.Schema) -> pl.DataFrame:
    """Return rows as the frame has them: identifiers as text, numbers in the schema's types."""
    words = {"trace_id": TRACE, "span_id": (SPAN,), "parent_span_id": (PARENT,)}
    texts = [identifiers.written(*made[words[name]]).alias(name) for name in schemas.IDS if name in schema]
    return made.with_columns(texts).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _odd(written: str) -> dict[str, Any]:
    """Return the attributes whose values are of another type than the registry's.

    Raises:
        SpanError: they are no JSON object.

    """
    try:
        return msgspec.json.decode(written, type=dict[str, Any])
    except DECODE_ERRORS as error:
        raise SpanError(shorten(f"column {ODD!r} is not a JSON object ({error})")) from error


def _flat(name: str, row: dict[str, Any]) -> FlatSpan:
    """Return a row of typed columns as a span again.

    Raises:
        SpanError: an identifier or a time is none, or the odd attributes are no JSON object.

    """
    attributes = {each: row[each] for each in DTYPES if row[each] is not None}
    if row[ODD] is not None:
        attributes |= _odd(row[ODD])
    high, low, span, parent = (f"{row[each] or 0:016x}" for each in (*IDENTITY, PARENT))
    return checked_span(row["life"], high + low, span, parent, name, row["start"], row["end"], attributes)
