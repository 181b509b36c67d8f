"""Typed columns as one Parquet file, made once of any capture and read at the speed of the disk.

A row per span, spans of one name together, so that they are read as a range of rows, without the columns that none of
them has:

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

import json
import os
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
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
from otel_cache.errors import CaptureError, UsageError
from otel_cache.package import SCOPE

Source = Path | bytes | str
"""A file, its content, or an address in object storage."""
METADATA = "otel_cache.capture"
"""Key of the file's metadata: a JSON object."""
_IDS: dict[str, pl.DataType] = dict.fromkeys(("trace_high", "trace_low", "span", "parent"), pl.UInt64())
_OLD_IDS: dict[str, pl.DataType] = dict.fromkeys(("trace_id", "span_id", "parent_span_id"), pl.String())
_REST: dict[str, pl.DataType] = {
    "name": pl.Categorical(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "resource": pl.Categorical(),
    "scope": pl.Categorical(),
}
_HEAD = {**_IDS, **_REST}
SCHEMA = {**_HEAD, **DTYPES, ODD: pl.String(), MORE: pl.String()}
ROW_GROUP = 1 << 16
PIECE_ROWS = ROW_GROUP
"""So many rows are read at a time, so that what they take does not grow with the file."""
THREADS = 2
MANY_RUNS = 256
"""Where the names change more often, and every hundred rows, the file is read as it stands, whatever the names."""
_FOREIGN_PART = "foreign"
_BROKEN = object_storage.BROKEN


class _Notes(msgspec.Struct):
    """What the metadata says; see `Tally`."""

    columns: dict[str, list[str]]
    foreign: int = 0
    skipped: int = 0
    notes: list[tuple[str, str]] = []
    kinds: dict[str, int] = {}
    points: list[Point] = []
    stamp: str = ""


def write(batches: Iterable[Batch], path: str, stamp: str = "") -> int:
    """Write batches to the file `path` and return how many spans of otel_cache there were; nothing is left half done.

    `stamp` is kept in it, for whoever has to know of what it was made.

    Raises:
        UsageError: the file cannot be written.

    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    tally = Tally()
    notes = _Notes({}, stamp=stamp)
    columns: dict[str, dict[str, None]] = {}
    count = 0
    try:
        with tempfile.TemporaryDirectory(prefix=".otel-cache-", dir=target.parent) as folder:
            parts: dict[str, list[Path]] = {}
            for batch in batches:
                tally.add(batch.tally)
                notes.points += batch.points
                count += sum(frame.height for frame in batch.frames.values())
                for name, frame in (*_frames(batch), (_FOREIGN_PART, _foreign(batch.foreign))):
                    if frame.is_empty():
                        continue
                    columns.setdefault(name, {}).update(dict.fromkeys(frame.columns))
                    files = parts.setdefault(name, [])
                    files.append(Path(folder, f"{sum(map(len, parts.values()))}.parquet"))
                    frame.write_parquet(files[-1], compression="lz4", statistics=False)
            notes.columns = {name: list(found) for name, found in columns.items()}
            notes.foreign, notes.skipped = tally.foreign, tally.skipped
            notes.notes, notes.kinds = tally.kept()
            _join([file for name in sorted(parts) for file in parts[name]], temporary, notes)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _frames(batch: Batch) -> Iterator[tuple[str, pl.DataFrame]]:
    resources = pl.Series([json.dumps(each) for each in batch.resources], dtype=pl.String).cast(pl.Categorical)
    for name, frame in batch.frames.items():
        told = frame.with_columns(resources.gather(frame["resource"]).alias("resource"), **_named(name, SCOPE))
        yield name, told.select(each for each in SCHEMA if each in told.columns)


def _named(name: str, scope: str) -> dict[str, pl.Expr]:
    return {"name": pl.lit(name, dtype=pl.Categorical), "scope": pl.lit(scope, dtype=pl.Categorical)}


def _foreign(spans: list[FlatSpan]) -> pl.DataFrame:
    rows = [(s.trace_id, s.span_id, s.parent_span_id, s.name, s.start, s.end, "{}", "") for s in spans]
    attributes = pl.Series(MORE, [msgspec.json.encode(s.attributes).decode() for s in spans], pl.String())
    written = pl.DataFrame(rows, schema={**_OLD_IDS, **_REST}, orient="row").with_columns(attributes)
    return _with_numbers(written).select(*_HEAD, MORE)


def _with_numbers(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with identifiers as numbers, which are text in files of older versions."""
    if not _OLD_IDS.keys() <= set(spans.columns):
        return spans
    texts = (("trace_id", 2), ("span_id", 1), ("parent_span_id", 1))
    numbers = [each for name, words in texts for each in numbers_in(name, words)]
    return spans.with_columns(each.alias(name) for name, each in zip(_IDS, numbers, strict=True)).drop(_OLD_IDS)


def _join(parts: list[Path], path: Path, notes: _Notes) -> None:
    """Join files to one, each column of the schema in it."""
    schema = pl.Schema(SCHEMA)
    scans = [pl.scan_parquet(part, schema=schema, missing_columns="insert") for part in parts]
    whole = pl.concat(scans) if scans else pl.LazyFrame(schema=schema)
    # Made first, with its mode, so that no other user ever reads it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    metadata = {METADATA: msgspec.json.encode(notes).decode()}
    # It is read twice as fast as zstd, and a twentieth of the JSON all the same.
    whole.sink_parquet(path, compression="lz4", row_group_size=ROW_GROUP, metadata=metadata)


def is_typed(names: Iterable[str]) -> bool:
    """Whether Parquet with columns of these names is what `write` writes, or wrote in older versions."""
    found = set(names)
    return {*_REST, MORE} <= found and (_IDS.keys() <= found or _OLD_IDS.keys() <= found)


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
        kinds = rows.select(pl.col("name", "scope").cast(pl.Categorical)).collect()
        yield _told(notes)
        with ThreadPoolExecutor(THREADS) as pool:
            waiting: deque[Future[Batch]] = deque()
            for piece in _pieces(kinds):
                waiting.append(pool.submit(_read_piece, rows, piece, _columns(piece, notes, present)))
                if len(waiting) > THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except _BROKEN as error:
        if isinstance(source, str):
            raise object_storage.failure(error, label) from error
        reason = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CaptureError(f"{label}: damaged Parquet ({reason}); convert the capture anew") from error


_ALWAYS = {*_HEAD, *_OLD_IDS}
_ALL = {**SCHEMA, **_OLD_IDS}


def _fits(found: pl.DataType, wanted: pl.DataType) -> bool:
    # Other programs that wrote the file anew may know no categories.
    return found == wanted or (wanted == pl.Categorical and found == pl.String)


def _told(notes: _Notes) -> Batch:
    """Return what the metadata tells that no row does."""
    batch = Batch(points=notes.points)
    batch.tally = Tally(foreign=notes.foreign, skipped=notes.skipped)
    batch.tally.keep(notes.notes, notes.kinds)
    return batch


class _Piece(NamedTuple):
    """Rows one behind the other: the first, how many there are, and the names and scopes that they have."""

    offset: int
    rows: int
    kinds: list[tuple[str | None, str | None]]


def _pieces(kinds: pl.DataFrame) -> Iterator[_Piece]:
    """Yield all rows in pieces: those of one name each, where they lie together."""
    changes = pl.any_horizontal(pl.all().ne_missing(pl.all().shift()))
    starts = [0, *filter(None, kinds.select(changes.arg_true().alias("at"))["at"].to_list())]
    together = len(starts) <= MANY_RUNS + kinds.height // 100
    for begin, end in pairwise([*(starts if together else [0]), kinds.height]):
        # Where a row group ends, too: what is compressed together is read at once.
        inside = range(begin - begin % PIECE_ROWS + PIECE_ROWS, end, PIECE_ROWS)
        for offset, stop in pairwise([begin, *inside, end]):
            count = stop - offset
            yield _Piece(offset, count, kinds[offset : offset + (1 if together else count)].unique().rows())


def _columns(piece: _Piece, notes: _Notes, present: Collection[str]) -> list[str]:
    """Return the columns that these spans have, as the metadata says it; all, where it cannot be right."""
    wanted: set[str] = set()
    for name, scope in piece.kinds:
        told = notes.columns.get((name or "") if scope == SCOPE else _FOREIGN_PART, present)
        wanted.update(told if set(told) <= set(present) else present)
    own = len(piece.kinds) == 1 and piece.kinds[0][1] == SCOPE
    known = {"name", "scope"} if own else set()
    return [name for name in present if (name in wanted or name in _ALWAYS) and name not in known]


def _read_piece(rows: pl.LazyFrame, piece: _Piece, columns: Sequence[str]) -> Batch:
    spans = _with_numbers(rows.select(columns).slice(piece.offset, piece.rows).collect())
    resource, resources = _resources(spans["resource"])
    line = pl.int_range(piece.offset + 1, piece.offset + 1 + spans.height, eager=True).alias("line")
    spans = spans.with_columns(resource, line)
    if "scope" not in spans.columns:
        name = piece.kinds[0][0]
        return Batch({} if name is None else {name: spans}, resources)
    ours, by_name = pl.col("scope").eq_missing(pl.lit(SCOPE)), {}
    for (name,), frame in spans.filter(ours).partition_by("name", as_dict=True, include_key=False).items():
        if name is not None:
            by_name[str(name)] = frame.drop("scope")
    others = spans.filter(~ours)
    return Batch(by_name, resources, list(_flat(others)) if others.height else [])


def _resources(written: pl.Series) -> tuple[pl.Series, list[Mapping[str, Any]]]:
    """Return a column of resources as indices into a list of them, and that."""
    codes = written.cast(pl.Categorical).to_physical()
    # The last place is for spans without a resource.
    size = 1 + int(codes.cast(pl.Int64).fill_null(-1).to_numpy().max(initial=-1)) + 1
    places = codes.fill_null(size - 1).to_numpy()
    at = np.full(size, -1)
    at[places] = np.arange(len(places))
    different = np.flatnonzero(at >= 0)
    index = np.zeros(size, np.int32)
    index[different] = np.arange(len(different))
    resources = [_object(each) for each in written.gather(at[different]).cast(pl.String)]
    return pl.Series("resource", index[places]), resources


def stamp_of(path: Path) -> str | None:
    """Return the stamp of a file that `write` wrote; None where there is none, or none that can be read."""
    try:
        return _notes(path).stamp
    except _BROKEN:
        return None


def _notes(source: Source) -> _Notes:
    metadata = pl.read_parquet_metadata(source, storage_options=object_storage.options(source))
    try:
        return msgspec.json.decode(metadata.get(METADATA, '{"columns":{}}'), type=_Notes)
    except msgspec.MsgspecError:
        return _Notes({})


def _flat(spans: pl.DataFrame) -> Iterator[FlatSpan]:
    for high, low, span, parent, name, start, end, more in spans.select(
        *_IDS, "name", "start", "end", MORE
    ).iter_rows():
        ids = f"{high or 0:016x}{low or 0:016x}", f"{span or 0:016x}", f"{parent:016x}" if parent else ""
        yield FlatSpan(FOREIGN, *ids, name or "", start or 0, end or 0, dict(_object(more)))


def _object(written: str | None) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
