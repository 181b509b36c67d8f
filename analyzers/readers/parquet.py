"""The sidecar's Parquet to typed columns: a row per span, attributes and resource as JSON text of a flat object."""

from collections.abc import Iterator
from typing import Any

import msgspec
import polars as pl

from analyzers.readers import object_storage, typed_parquet
from analyzers.readers.attributes import shorten
from analyzers.readers.columns import Batch, BatchBuilder
from analyzers.readers.own_reports import is_table, no_capture_but_table
from analyzers.readers.spans import checked_span
from analyzers.readers.tally import BAD_SPAN, SpanError
from otel_cache.errors import CaptureError
from otel_cache.package import SCOPE

COLUMNS = {
    "trace_id": pl.String,
    "span_id": pl.String,
    "parent_span_id": pl.String,
    "name": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
    "resource": pl.String,
    "attributes": pl.String,
    "scope": pl.String,
}
BATCH_ROWS = 65536

_BROKEN = object_storage.BROKEN
_decoder = msgspec.json.Decoder(dict[str, Any])


def read(source: typed_parquet.Source, label: str) -> Iterator[Batch]:
    """Yield the spans in Parquet, batch by batch.

    Raises:
        CaptureError: the file is damaged, cut off, or has not the columns of a capture.

    """
    if typed_parquet.is_typed(_columns(source, label)):
        yield from typed_parquet.read(source, label)
        return
    number = 0
    for rows in _batches(source, label):
        builder = BatchBuilder(label, "row")
        for trace, span, parent, name, start, end, resource, attributes, scope in rows.iter_rows():
            number += 1
            if scope != SCOPE:
                builder.batch.tally.foreign += 1
                continue
            try:
                owner, plain = _resource(resource or "{}", builder), _decode(attributes, "attributes")
                builder.add(checked_span(owner, trace, span, parent, name, start, end, plain), number)
            except SpanError as error:
                builder.skip(BAD_SPAN, number, str(error))
        yield builder.build()


def _columns(source: typed_parquet.Source, label: str) -> list[str]:
    try:
        return typed_parquet.scan(source).collect_schema().names()
    except _BROKEN as error:
        raise _damaged(error, source, label) from error


def _batches(source: typed_parquet.Source, label: str) -> Iterator[pl.DataFrame]:
    try:
        scan = typed_parquet.scan(source)
        schema = scan.collect_schema()
        if is_table(schema):
            raise CaptureError(no_capture_but_table(label))
        for name, dtype in COLUMNS.items():
            if name not in schema:
                raise CaptureError(f"{label}: Parquet, but not a capture of otel-cache: it has no column {name!r}")
            if schema[name] != dtype:
                raise CaptureError(f"{label}: column {name!r} holds {schema[name]}, not {dtype()}")
        rows = scan.select(pl.len()).collect().item()
        for offset in range(0, rows, BATCH_ROWS):
            yield scan.select(list(COLUMNS)).slice(offset, BATCH_ROWS).collect()
    except _BROKEN as error:
        raise _damaged(error, source, label) from error


def _damaged(error: BaseException, source: typed_parquet.Source, label: str) -> CaptureError:
    if isinstance(source, str):
        return object_storage.failure(error, label)
    reason = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return CaptureError(
        f"{label}: damaged Parquet, or one that is still being written ({reason}); "
        "wait for its writer to end, or take OTLP JSON lines, which can be read while they grow"
    )


def _resource(written: str, builder: BatchBuilder) -> int:
    """Return the index of a resource; each is decoded once."""
    known = builder.known_resource(written.encode())
    return builder.resource(written.encode(), _decode(written, "resource")) if known is None else known


def _decode(encoded: str | None, what: str) -> dict[str, Any]:
    try:
        return _decoder.decode(encoded or "{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SpanError(shorten(f"the {what} are not a JSON object ({error})")) from error
