"""Typed columns as one Parquet file, made once of any capture and read at the speed of the disk.

A row per span, spans of one name together, in row groups of their own where they are many, so that they are read
without the columns that none of them has:

    trace_high, trace_low   u64, the two halves of the trace's identifier
    span, parent            u64, identifiers of spans; the parent's is 0 at a root
    name                    category
    start, end              i64, nanoseconds since the epoch
    resource                category, JSON object: attribute name to value
    scope                   category, name of the instrumentation scope; "" for other programs'
    an attribute's name     its value, typed as in the signal reference; null where the span has none
    odd                     str, JSON object: attributes with a value of another type than in the reference
    more                    str, JSON object: attributes that the reference does not have

Older files have `trace_id`, `span_id` and `parent_span_id` as text instead of the numbers.

Of spans of other programs those are kept that tell of tokens or of a request's way; how many there were, what could not
be read and points of vLLM's counters are in the file's metadata, and which columns the spans of each name have.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from analyzers.readers import object_storage
from analyzers.readers.attributes import shorten
from analyzers.readers.columns import DTYPES, MORE, ODD, Batch
from analyzers.readers.counters import Point
from analyzers.readers.identifiers import numbers_in
from analyzers.readers.spans import FOREIGN, FlatSpan
from analyzers.readers.tally import Tally
from otel_cache.errors import CaptureError
from otel_cache.package import SCOPE

Source = Path | bytes | str
"""A file, its content, or an address in object storage."""
METADATA = "otel_cache.capture"
"""Key of the file's metadata: a JSON object."""
IDS: dict[str, pl.DataType] = dict.fromkeys(("trace_high", "trace_low", "span", "parent"), pl.UInt64())
OLD_IDS: dict[str, pl.DataType] = dict.fromkeys(("trace_id", "span_id", "parent_span_id"), pl.String())
REST: dict[str, pl.DataType] = {
    "name": pl.Categorical(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "resource": pl.Categorical(),
    "scope": pl.Categorical(),
}
HEAD = {**IDS, **REST}
SCHEMA = {**HEAD, **DTYPES, ODD: pl.String(), MORE: pl.String()}
ROW_GROUP = 1 << 17
PIECE_ROWS = ROW_GROUP
"""So many rows are read at a time, so that what they take does not grow with the file."""
THREADS = 2
AHEAD = THREADS + 1
"""So many pieces are waited for at most: one is ready when the next is asked for."""
FOREIGN_PART = "foreign"
_BROKEN = object_storage.BROKEN


class Notes(msgspec.Struct):
    """What the metadata says; see `Tally`."""

    columns: dict[str, list[str]]
    foreign: int = 0
    skipped: int = 0
    notes: list[tuple[str, str]] = []
    kinds: dict[str, int] = {}
    points: list[Point] = []
    stamp: str = ""
    groups: list[tuple[list[str], int]] = []
    """Of each row group the names that its spans have, and how many rows it has; older files do not say."""


def is_typed(names: Iterable[str]) -> bool:
    """Whether Parquet with columns of these names is what `write` writes, or wrote in older versions."""
    found = set(names)
    return {*REST, MORE} <= found and (IDS.keys() <= found or OLD_IDS.keys() <= found)


def with_numbers(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with identifiers as numbers, which are text in files of older versions."""
    if not OLD_IDS.keys() <= set(spans.columns):
        return spans
    texts = (("trace_id", 2), ("span_id", 1), ("parent_span_id", 1))
    numbers = [each for name, words in texts for each in numbers_in(name, words)]
    return spans.with_columns(each.alias(name) for name, each in zip(IDS, numbers, strict=True)).drop(OLD_IDS)


def scan(source: Source, **options: Any) -> pl.LazyFrame:
    """Return what is in Parquet, not yet read; nothing in its name is taken for a pattern."""
    return pl.scan_parquet(source, glob=False, storage_options=object_storage.options(source), **options)


def read(source: Source, label: str) -> Iterator[Batch]:
    """Yield the spans of a file that `write` wrote, some of one name at a time.

    Raises:
        CaptureError: the file is damaged.

    """
    try:
        notes = _notes(source)
        rows = scan(source)
        present = rows.collect_schema()
        wrong = [name for name in present if name in _ALL and not _fits(present[name], _ALL[name])]
        if wrong:
            raise CaptureError(f"{label}: column {wrong[0]!r} holds {present[wrong[0]]}, not {_ALL[wrong[0]]}")
        height = rows.select(pl.len()).collect().item()
        yield _told(notes)
        file = _File(rows, notes, present)
        with ThreadPoolExecutor(THREADS) as pool:
            waiting: deque[Future[Batch]] = deque()
            for piece in _pieces(notes, height):
                waiting.append(pool.submit(_read_piece, file, piece))
                if len(waiting) >= AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except _BROKEN as error:
        if isinstance(source, str):
            raise object_storage.failure(error, label) from error
        reason = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CaptureError(f"{label}: damaged Parquet ({reason}); convert the capture anew") from error


_KIND = ("name", "scope")
_CODED = (*_KIND, "resource")
_CODE = "code of "
_ALWAYS = {*HEAD, *OLD_IDS}
_ALL = {**SCHEMA, **OLD_IDS}


def _fits(found: pl.DataType, wanted: pl.DataType) -> bool:
    # Other programs that wrote the file anew may know no categories.
    return found == wanted or (wanted == pl.Categorical and found == pl.String)


def _told(notes: Notes) -> Batch:
    """Return what the metadata tells that no row does."""
    batch = Batch(points=notes.points)
    batch.tally = Tally(foreign=notes.foreign, skipped=notes.skipped)
    batch.tally.keep(notes.notes, notes.kinds)
    return batch


class _File(NamedTuple):
    """A file that is read: its rows, what its metadata says, and the types of its columns."""

    rows: pl.LazyFrame
    notes: Notes
    present: Mapping[str, pl.DataType]


class _Piece(NamedTuple):
    """Rows one behind the other: the first, how many there are, and the names that they have, as far as it is told."""

    offset: int
    rows: int
    names: list[str] | None


_Kind = tuple[str | None, str | None]
"""Name and scope of a span."""


def _pieces(notes: Notes, height: int) -> Iterator[_Piece]:
    """Yield all rows in pieces: row groups, as far as that can be right, else so many at a time."""
    offset = 0
    told = sum(rows for _, rows in notes.groups) == height and all(rows > 0 for _, rows in notes.groups)
    for names, rows in notes.groups if told else ():
        for start in range(0, rows, PIECE_ROWS):
            yield _Piece(offset + start, min(PIECE_ROWS, rows - start), names)
        offset += rows
    while offset < height:
        yield _Piece(offset, min(PIECE_ROWS, height - offset), None)
        offset += PIECE_ROWS


def _part(kind: _Kind) -> str:
    name, scope = kind
    return (name or "") if scope == SCOPE else FOREIGN_PART


def _columns(parts: Iterable[str], file: _File) -> list[str]:
    """Return the columns that spans of these names have, as the metadata says it; all, where it cannot be right."""
    wanted = set(_ALWAYS)
    for part in parts:
        told = file.notes.columns.get(part, file.present)
        wanted.update(told if set(told) <= set(file.present) else file.present)
    return [name for name in file.present if name in wanted]


def _with_codes(rows: pl.LazyFrame) -> pl.DataFrame:
    """Read rows, and the codes of their names, scopes and resources.

    All in one query, and what follows is no query: many small ones cost as much as the reading.
    """
    return rows.with_columns(
        pl.col(each).cast(pl.Categorical).to_physical().alias(_CODE + each) for each in _CODED
    ).collect()


def _kinds(spans: pl.DataFrame) -> list[_Kind]:
    """Return the names and scopes that spans have."""
    first = [spans[name][0] for name in _KIND]
    codes = [spans[_CODE + name] for name in _KIND]
    if None not in first and all(not each.null_count() and each.min() == each.max() for each in codes):
        return [(first[0], first[1])]
    return spans.select(_KIND).unique().rows()


def _read_piece(file: _File, piece: _Piece) -> Batch:
    rows = file.rows.slice(piece.offset, piece.rows)
    parts = piece.names
    if parts is None:
        parts = list(map(_part, _kinds(_with_codes(rows.select(_CODED)))))
    columns = _columns(parts, file)
    spans = _with_codes(rows.select(columns))
    kinds = _kinds(spans)
    needed = _columns(map(_part, kinds), file)
    if not set(needed) <= set(columns):
        # The names are others than was told.
        spans = _with_codes(rows.select(needed))
    resource, resources = _resources(spans)
    line = pl.Series("line", np.arange(piece.offset + 1, piece.offset + 1 + spans.height))
    spans = with_numbers(spans.replace_column(spans.get_column_index("resource"), resource).hstack([line]))
    ours = {kind[0]: _own(kind, file, spans.columns) for kind in kinds if kind[0] is not None and kind[1] == SCOPE}
    if len(kinds) == 1 and ours:
        return Batch({name: spans[own] for name, own in ours.items()}, resources)
    of_ours = pl.col("scope").eq_missing(pl.lit(SCOPE))
    by_name = {}
    for (name,), frame in spans.filter(of_ours).partition_by("name", as_dict=True).items():
        if name is not None:
            by_name[str(name)] = frame[ours[str(name)]]
    others = spans.filter(~of_ours)
    return Batch(by_name, resources, list(_flat(others)) if others.height else [])


def _own(kind: _Kind, file: _File, columns: Sequence[str]) -> list[str]:
    """Return those of `columns` that spans of one name have in a batch."""
    own = {*_columns([_part(kind)], file), *IDS, "line"} - set(_KIND)
    return [name for name in columns if name in own]


def _resources(spans: pl.DataFrame) -> tuple[pl.Series, list[Mapping[str, Any]]]:
    """Return the resources of spans as indices into a list of them, and that."""
    written, codes = spans["resource"], spans[_CODE + "resource"]
    size = 1 + int(codes.max() or 0)  # type: ignore[arg-type]
    if codes.null_count():
        # The last place is for spans without a resource.
        codes = codes.fill_null(size)
        size += 1
    places = codes.to_numpy()
    at = np.full(size, -1, np.int32)
    at[places] = np.arange(len(places), dtype=np.int32)
    different = np.flatnonzero(at >= 0)
    index = np.zeros(size, np.int32)
    index[different] = np.arange(len(different))
    resources = [_object(written[each]) for each in at[different].tolist()]
    return pl.Series("resource", index[places]), resources


def stamp_of(path: Path) -> str | None:
    """Return the stamp of a file that `write` wrote; None where there is none, or none that can be read."""
    try:
        return _notes(path).stamp
    except _BROKEN:
        return None


def _notes(source: Source) -> Notes:
    metadata = pl.read_parquet_metadata(source, storage_options=object_storage.options(source))
    try:
        return msgspec.json.decode(metadata.get(METADATA, '{"columns":{}}'), type=Notes)
    except msgspec.MsgspecError:
        return Notes({})


def _flat(spans: pl.DataFrame) -> Iterator[FlatSpan]:
    for high, low, span, parent, name, start, end, more in spans.select(*IDS, "name", "start", "end", MORE).iter_rows():
        ids = f"{high or 0:016x}{low or 0:016x}", f"{span or 0:016x}", f"{parent:016x}" if parent else ""
        yield FlatSpan(FOREIGN, *ids, name or "", start or 0, end or 0, dict(_object(more)))


def _object(written: str | None) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
