"""Spans to typed columns: what all readers yield, whatever the form of their input.

A batch has one frame per span name, a row per span. Its columns are those of `BASE`, one for each attribute of the
registry that a span of the batch has, typed as the registry says, and, where they are needed, `odd` and `more`:
attributes of the registry with a value of another type, and attributes that it does not know, as JSON objects.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import msgspec
import polars as pl

from analyzers.readers.attributes import MAX_I64
from analyzers.readers.counters import Point
from analyzers.readers.identifiers import SPAN_DIGITS, TRACE_DIGITS, numbers_of, parents_of
from analyzers.readers.spans import FlatSpan, checked_span
from analyzers.readers.tally import BAD_SPAN, SpanError, Tally
from otel_cache.semconv.types import SPAN_TYPES

BASE: dict[str, pl.DataType] = {
    "resource": pl.Int32(),
    "line": pl.Int64(),
    "trace_high": pl.UInt64(),
    "trace_low": pl.UInt64(),
    "span": pl.UInt64(),
    "parent": pl.UInt64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
"""`resource` is an index into `Batch.resources`, `line` the number of the line, message or row of the input; then
identifiers as numbers (see `identifiers`; the trace's is in two halves), and nanoseconds since the epoch."""
_TAKEN = ("resource", "line", "trace", "span", "parent", "start", "end")
"""The columns that a builder takes for those of `BASE`: identifiers as text."""
ODD, MORE = "odd", "more"
_DTYPES: dict[str, pl.DataType] = {
    "int": pl.Int64(),
    "string": pl.String(),
    "boolean": pl.Boolean(),
    "double": pl.Float64(),
    "int[]": pl.List(pl.Int64()),
    "string[]": pl.List(pl.String()),
    "boolean[]": pl.List(pl.Boolean()),
    "double[]": pl.List(pl.Float64()),
}
DTYPES = {name: _DTYPES[kind] for name, kind in SPAN_TYPES.items()}
"""Of the columns of attributes."""
_PYTHON: dict[str, type[Any]] = {"int": int, "string": str, "boolean": bool, "double": float}


@dataclass
class Batch:
    """Spans of one input, or of a part of it.

    Attributes:
        frames: the spans of otel_cache by name.
        resources: the attributes of each resource that a span names.
        foreign: spans of other programs that tell of tokens, their resource left out.
        points: of vLLM's counters.
        tally: what else was read, and what was passed over.

    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    foreign: list[FlatSpan] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class Lists:
    """A column of lists: their values one after the other, and their lengths."""

    def __init__(self, flat: list[Any], lengths: list[int]) -> None:
        self.flat, self.lengths = flat, lengths

    @classmethod
    def of(cls, lists: Sequence[Sequence[Any]], value: Callable[[Any], Any]) -> "Lists":
        """Return a column of `lists`; `value` is called with each element."""
        return cls(list(map(value, chain.from_iterable(lists))), list(map(len, lists)))

    def extend(self, more: "Lists") -> None:
        """Take the lists of another column."""
        self.flat.extend(more.flat)
        self.lengths.extend(more.lengths)

    def append(self, values: Sequence[Any]) -> None:
        """Take one list."""
        self.flat.extend(values)
        self.lengths.append(len(values))

    def __iter__(self) -> Iterator[list[Any]]:
        flat = iter(self.flat)
        return (list(islice(flat, length)) for length in self.lengths)


class BatchBuilder:
    """Gathers spans that have the same attributes, and makes columns of them.

    Args:
        label: what errors call the input.
        what: a record of it: line, message or row.

    """

    def __init__(self, label: str, what: str = "line") -> None:
        self.batch = Batch()
        self._label, self._what = label, what
        self._resources: dict[bytes, int] = {}
        self._groups: dict[tuple[str, ...], list[Any]] = {}
        self._frames: list[tuple[str, pl.DataFrame]] = []

    def resource(self, encoded: bytes, attributes: Mapping[str, Any]) -> int:
        """Return the index of a resource."""
        index = self._resources.get(encoded)
        if index is None:
            index = self._resources[encoded] = len(self.batch.resources)
            self.batch.resources.append(attributes)
        return index

    def known_resource(self, encoded: bytes) -> int | None:
        """Return the index of a resource that was seen before."""
        return self._resources.get(encoded)

    def skip(self, kind: str, number: int, why: str) -> None:
        """Count a record, or a span in it, that could not be read."""
        self.batch.tally.skip(kind, f"{self._label} {self._what} {number}", why)

    def add(self, span: FlatSpan, number: int) -> None:
        """Take one span, whose `life` is the index of its resource."""
        names, values, odd, more = [span.name], [], {}, {}
        for name, value in span.attributes.items():
            kind = SPAN_TYPES.get(name)
            if kind is None:
                more[name] = value
            elif _fits(value, kind):
                names.append(name)
                values.append(value)
            elif value is not None:
                odd[name] = value
        for name, left in ((ODD, odd), (MORE, more)):
            if left:
                names.append(name)
                values.append(_json(left))
        base = (span.life, number, span.trace_id, span.span_id, span.parent_span_id, span.start, span.end)
        for column, value in zip(self._group(tuple(names)), (*base, *values), strict=True):
            column.append(value)

    def add_columns(self, name: str, names: Sequence[str], columns: Sequence[Sequence[Any] | Lists]) -> None:
        """Take spans of one name that have the same attributes; `columns` are those of `_TAKEN` and of `names`."""
        for column, values in zip(self._group((name, *names)), columns, strict=True):
            column.extend(values)

    def add_frame(self, name: str, frame: pl.DataFrame) -> None:
        """Take spans of one name that are columns already."""
        self._frames.append((name, frame))

    def _group(self, key: tuple[str, ...]) -> list[Any]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = [[] for _ in _TAKEN]
            group += [Lists([], []) if isinstance(DTYPES.get(name), pl.List) else [] for name in key[1:]]
        return group

    def build(self) -> Batch:
        """Return what was taken."""
        frames: dict[str, list[pl.DataFrame]] = {}
        for name, frame in self._frames:
            frames.setdefault(name, []).append(frame)
        self._frames.clear()
        while self._groups:
            (name, *names), columns = self._groups.popitem()
            try:
                frame = _frame(names, columns)
            except (OverflowError, TypeError, ValueError, pl.exceptions.PolarsError):
                # A number that no column holds, or what is no identifier: each span by itself, so that it costs itself.
                for row in zip(*columns, strict=True):
                    self._add_checked(name, row[: len(_TAKEN)], dict(zip(names, row[len(_TAKEN) :], strict=True)))
                continue
            frames.setdefault(name, []).append(frame)
        self.batch.frames = {name: pl.concat(parts, how="diagonal") for name, parts in frames.items()}
        return self.batch

    def _add_checked(self, name: str, base: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        resource, number, trace, span, parent, start, end = base
        try:
            self.add(checked_span(resource, trace, span, parent, name, start, end, attributes), number)
        except SpanError as error:
            self.skip(BAD_SPAN, number, str(error))


def _frame(names: Sequence[str], columns: Sequence[Any]) -> pl.DataFrame:
    resource, line, trace, span, parent, start, end, *attributes = columns
    halves, spans = numbers_of(trace, TRACE_DIGITS), numbers_of(span, SPAN_DIGITS)
    base = (resource, line, halves[:, 0], halves[:, 1], spans[:, 0], parents_of(parent), start, end)
    dtypes = [*BASE.items(), *((name, DTYPES.get(name, pl.String())) for name in names)]
    every = zip(dtypes, (*base, *attributes), strict=True)
    return pl.DataFrame([_series(name, values, dtype) for (name, dtype), values in every])


def _fits(value: Any, kind: str) -> bool:
    if kind.endswith("[]"):
        return isinstance(value, list) and all(_fits(each, kind[:-2]) for each in value)
    # bool is an int to Python, not to OpenTelemetry.
    fits: bool = type(value) is _PYTHON[kind] and (kind != "int" or -MAX_I64 <= value <= MAX_I64)
    return fits


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, ValueError):
        # Integers of hundreds of digits: what is wrong with them is said by their first ones.
        return msgspec.json.encode({key: str(each)[:80] for key, each in value.items()}).decode()  # type: ignore[attr-defined]


def _series(name: str, values: Sequence[Any] | Lists, dtype: pl.DataType) -> pl.Series:
    if not isinstance(values, Lists):
        return pl.Series(name, values, dtype)
    # Polars takes fifty times as long for Python's lists as for the same values one after the other.
    flat = pl.Series(name, values.flat, dtype.inner)  # type: ignore[attr-defined]
    lengths, length = values.lengths, values.lengths[0]
    if length and lengths.count(length) == len(lengths):
        return flat.reshape((len(lengths), length)).arr.to_list()
    row = pl.int_range(len(lengths), eager=True).alias("row")
    rows = row.repeat_by(pl.Series(lengths, dtype=pl.UInt32)).explode().drop_nulls()
    made = pl.DataFrame([rows, flat]).group_by("row", maintain_order=True).agg(name)
    joined = row.to_frame().join(made, on="row", how="left", maintain_order="left")
    return joined.select(pl.col(name).fill_null(pl.lit([], dtype=dtype)))[name]
