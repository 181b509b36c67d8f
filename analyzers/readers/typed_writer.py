"""Typed columns to one Parquet file, in the form that `analyzers.readers.typed_parquet` reads.

Spans of one name are row groups of their own; names that few spans have share some. Text is stored with dictionaries,
and compressed but for fingerprints; numbers are not compressed, which would cost more time than it saves bytes. A file
of few spans is read at once anyway: all of it is compressed, and it is a third smaller. polars writes all columns in
one way, so pyarrow does it.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from analyzers.readers.columns import MORE, Batch
from analyzers.readers.spans import FlatSpan
from analyzers.readers.tally import Tally
from analyzers.readers.typed_parquet import (
    FOREIGN_PART,
    HEAD,
    IDS,
    METADATA,
    OLD_IDS,
    REST,
    ROW_GROUP,
    SCHEMA,
    Notes,
    with_numbers,
)
from otel_cache.errors import UsageError
from otel_cache.package import SCOPE

GROUP_BYTES = 16 << 20
"""So much a row group takes in memory: what is read at a time, and by every thread."""
ALONE = 1 << 13
"""Names with fewer spans share row groups, because each of those costs some bytes for each column."""
FEW = ROW_GROUP
"""A file of fewer spans is compressed whole."""
_COMPAT = pl.CompatLevel.oldest()
_RANDOM = (*IDS, "start", "end")
"""Columns whose values hardly repeat."""
_FINGERPRINT = ".fingerprint"


def write(batches: Iterable[Batch], path: str, stamp: str = "") -> int:
    """Write batches to the file `path` and return how many spans of otel_cache there were; nothing is left half done.

    `stamp` is kept in it, for whoever has to know of what it was made.

    Raises:
        UsageError: the file cannot be written.

    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    tally = Tally()
    notes = Notes({}, stamp=stamp)
    columns: dict[str, dict[str, None]] = {}
    count = 0
    try:
        with tempfile.TemporaryDirectory(prefix=".otel-cache-", dir=target.parent) as folder:
            parts: dict[str, list[Path]] = {}
            rows: dict[str, int] = {}
            sizes: dict[str, int] = {}
            for batch in batches:
                tally.add(batch.tally)
                notes.points += batch.points
                count += sum(frame.height for frame in batch.frames.values())
                for name, frame in (*_frames(batch), (FOREIGN_PART, _foreign(batch.foreign))):
                    if frame.is_empty():
                        continue
                    columns.setdefault(name, {}).update(dict.fromkeys(frame.columns))
                    rows[name] = rows.get(name, 0) + frame.height
                    sizes[name] = sizes.get(name, 0) + int(frame.estimated_size())
                    files = parts.setdefault(name, [])
                    files.append(Path(folder, f"{sum(map(len, parts.values()))}.parquet"))
                    frame.write_parquet(files[-1], compression="lz4", statistics=False)
            notes.columns = {name: list(found) for name, found in columns.items()}
            notes.foreign, notes.skipped = tally.foreign, tally.skipped
            notes.notes, notes.kinds = tally.kept()
            scans = {name: _scan(parts[name], notes.columns[name]) for name in sorted(parts)}
            most = {name: min(ROW_GROUP, 1 + rows[name] * GROUP_BYTES // sizes[name]) for name in rows}
            _join(_row_groups(scans, rows, most), temporary, notes, _forms(few=sum(rows.values()) < FEW))
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
    written = pl.DataFrame(rows, schema={**OLD_IDS, **REST}, orient="row").with_columns(attributes)
    return with_numbers(written).select(*HEAD, MORE)


def _scan(files: Sequence[Path], columns: Sequence[str]) -> pl.LazyFrame:
    schema = pl.Schema(SCHEMA)
    scans = [pl.scan_parquet(file, schema=schema, missing_columns="insert", glob=False) for file in files]
    return pl.concat(scans).select(columns)


def _row_groups(
    scans: Mapping[str, pl.LazyFrame], rows: Mapping[str, int], most: Mapping[str, int]
) -> Iterator[tuple[list[str], pl.DataFrame]]:
    """Yield the rows of each row group, and the names that they have; `most` is how many one may have of a name."""
    shared: dict[str, pl.DataFrame] = {}
    waiting = 0
    for name, scan in scans.items():
        if rows[name] >= ALONE:
            # As large as each other: none is begun for a few rows.
            size = -(-rows[name] // -(-rows[name] // most[name]))
            for offset in range(0, rows[name], size):
                yield [name], scan.slice(offset, size).collect()
            continue
        if waiting + rows[name] > ROW_GROUP:
            yield list(shared), pl.concat(shared.values(), how="diagonal")
            shared, waiting = {}, 0
        shared[name] = scan.collect()
        waiting += rows[name]
    if shared:
        yield list(shared), pl.concat(shared.values(), how="diagonal")


def _join(groups: Iterable[tuple[list[str], pl.DataFrame]], path: Path, notes: Notes, forms: Mapping[str, Any]) -> None:
    """Write row groups to a file, each column of the schema in it."""
    # Only those who write need it.
    from pyarrow import parquet

    schema = pl.DataFrame(schema=SCHEMA).to_arrow(compat_level=_COMPAT).schema
    # Made first, with its mode, so that no other user ever reads it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with parquet.ParquetWriter(path, schema, write_statistics=["name", "start", "end"], **forms) as writer:
        for names, rows in groups:
            notes.groups.append((names, rows.height))
            writer.write_table(_table(rows, schema), row_group_size=max(rows.height, 1))
        writer.add_key_value_metadata({METADATA: msgspec.json.encode(notes).decode()})


def _forms(few: bool) -> dict[str, Any]:
    """Return how columns are compressed, and which have a dictionary; `few` is whether the spans are."""
    compression, dictionaries = {}, []
    for name, dtype in SCHEMA.items():
        of_list = isinstance(dtype, pl.List)
        inner = dtype.inner if isinstance(dtype, pl.List) else dtype
        path = f"{name}.list.element" if of_list else name
        random = name in _RANDOM or inner == pl.Float64 or _FINGERPRINT in name
        compression[path] = "none" if random else "lz4"
        if name not in _RANDOM and inner not in (pl.Float64, pl.Boolean):
            dictionaries.append(path)
    return {"compression": "zstd" if few else compression, "use_dictionary": dictionaries}


def _table(rows: pl.DataFrame, schema: Any) -> Any:
    """Return rows as Arrow has them, with all columns of the schema."""
    import pyarrow as pa

    made = rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).to_arrow(compat_level=_COMPAT)
    columns = []
    for field in schema:
        if field.name not in rows.columns:
            columns.append(pa.nulls(rows.height, field.type))
        elif pa.types.is_dictionary(field.type):
            # With the categories of these rows, not with all that there ever were.
            coded = made[field.name].combine_chunks().dictionary_encode()
            columns.append(pa.DictionaryArray.from_arrays(coded.indices.cast(field.type.index_type), coded.dictionary))
        else:
            columns.append(made[field.name].combine_chunks())
    return pa.Table.from_arrays(columns, schema=schema)
