"""Typed columns as one Parquet file, made once of any capture and read at the speed of the disk.

A row per span, spans of one name together, so that a name is found by the statistics of its row groups:

    trace_id, span_id, parent_span_id   str, lower-case hex; the parent's is "" at a root
    name                                str
    start, end                          i64, nanoseconds since the epoch
    resource                            str, JSON object: attribute name to value
    scope                               str, name of the instrumentation scope; "" for other programs'
    an attribute's name                 its value, typed as in the signal reference; null where the span has none
    odd                                 str, JSON object: attributes with a value of another type than in the reference
    more                                str, JSON object: attributes that the reference does not have

Of spans of other programs those are kept that tell of tokens or of a request's way; how many there were, what could not
be read and points of vLLM's counters are in the file's metadata.
"""

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from analyzers.readers import object_storage
from analyzers.readers.attributes import shorten
from analyzers.readers.columns import DTYPES, MORE, ODD, Batch
from analyzers.readers.counters import Point
from analyzers.readers.spans import FOREIGN, FlatSpan
from analyzers.readers.tally import Tally
from otel_cache.errors import CaptureError, UsageError
from otel_cache.package import SCOPE

Source = Path | bytes | str
"""A file, its content, or an address in object storage."""
METADATA = "otel_cache.capture"
"""Key of the file's metadata: a JSON object."""
_HEAD: dict[str, pl.DataType] = {
    "trace_id": pl.String(),
    "span_id": pl.String(),
    "parent_span_id": pl.String(),
    "name": pl.String(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "resource": pl.String(),
    "scope": pl.String(),
}
SCHEMA = {**_HEAD, **DTYPES, ODD: pl.String(), MORE: pl.String()}
ROW_GROUP = 100_000
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
    resources = [json.dumps(each) for each in batch.resources]
    for name, frame in batch.frames.items():
        resource = pl.col("resource").replace_strict(dict(enumerate(resources)), return_dtype=pl.String)
        yield name, _ordered(frame.with_columns(resource, name=pl.lit(name), scope=pl.lit(SCOPE)).drop("line"))


def _ordered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(name for name in SCHEMA if name in frame.columns)


def _foreign(spans: list[FlatSpan]) -> pl.DataFrame:
    rows = [(s.trace_id, s.span_id, s.parent_span_id, s.name, s.start, s.end, "{}", "") for s in spans]
    attributes = pl.Series(MORE, [msgspec.json.encode(s.attributes).decode() for s in spans], pl.String())
    return pl.DataFrame(rows, schema=_HEAD, orient="row").with_columns(attributes)


def _join(parts: list[Path], path: Path, notes: _Notes) -> None:
    """Join files to one, each column of the schema in it."""
    schema = pl.Schema(SCHEMA)
    scans = [pl.scan_parquet(part, schema=schema, missing_columns="insert") for part in parts]
    whole = pl.concat(scans) if scans else pl.LazyFrame(schema=schema)
    # Made first, with its mode, so that no other user ever reads it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    metadata = {METADATA: msgspec.json.encode(notes).decode()}
    whole.sink_parquet(path, compression="zstd", row_group_size=ROW_GROUP, metadata=metadata)


def is_typed(names: Iterable[str]) -> bool:
    """Whether Parquet with columns of these names is what `write` writes."""
    return {*_HEAD, MORE} <= set(names)


def scan(source: Source, **options: Any) -> pl.LazyFrame:
    """Return what is in Parquet, not yet read; nothing in its name is taken for a pattern."""
    return pl.scan_parquet(source, glob=False, storage_options=object_storage.options(source), **options)


def read(source: Source, label: str) -> Iterator[Batch]:
    """Yield the spans of a file that `write` wrote.

    Raises:
        CaptureError: the file is damaged.

    """
    try:
        notes = _notes(source)
        rows = scan(source, row_index_name="line", row_index_offset=1)
        present = rows.collect_schema()
        wrong = [name for name, dtype in SCHEMA.items() if name in present and present[name] != dtype]
        if wrong:
            raise CaptureError(f"{label}: column {wrong[0]!r} holds {present[wrong[0]]}, not {SCHEMA[wrong[0]]}")
        ours, line = pl.col("scope") == SCOPE, pl.col("line").cast(pl.Int64)
        names = list(notes.columns) if notes.columns else _names(rows.filter(ours))
        every = [name for name in present if name != "line"]
        wanted = {name: notes.columns.get(name, every) for name in names if name != _FOREIGN_PART}
        frames = [
            rows.filter(pl.col("name") == name, ours).select(line, *_present({*_HEAD, *columns}, present))
            for name, columns in wanted.items()
        ]
        foreign = rows.filter(~ours | ours.is_null())
        *found, others = pl.collect_all([*frames, foreign.select(*_HEAD, MORE)])
    except _BROKEN as error:
        if isinstance(source, str):
            raise object_storage.failure(error, label) from error
        reason = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CaptureError(f"{label}: damaged Parquet ({reason}); convert the capture anew") from error
    batch = Batch(points=notes.points, foreign=list(_flat(others)))
    batch.tally = Tally(foreign=notes.foreign, skipped=notes.skipped)
    batch.tally.keep(notes.notes, notes.kinds)
    resources: dict[str, int] = {}
    for name, frame in zip(wanted, found, strict=True):
        for written in frame["resource"].unique():
            if written not in resources:
                resources[written] = len(resources)
                batch.resources.append(_object(written))
        index = pl.col("resource").replace_strict(resources, return_dtype=pl.Int32)
        batch.frames[name] = frame.with_columns(index).drop("name", "scope", strict=False)
    yield batch


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


def _names(rows: pl.LazyFrame) -> list[str]:
    found: list[str] = rows.select(pl.col("name").unique()).collect()["name"].drop_nulls().to_list()
    return found


def _present(wanted: Collection[str], present: Iterable[str]) -> list[str]:
    return [name for name in present if name in wanted]


def _flat(spans: pl.DataFrame) -> Iterator[FlatSpan]:
    for trace, span, parent, name, start, end, _, _, more in spans.iter_rows():
        yield FlatSpan(FOREIGN, trace, span, parent, name, start, end, dict(_object(more)))


def _object(written: str | None) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
