"""The sidecar's Parquet to flat spans: a row per span, attributes and resource as JSON text of a flat object."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import polars as pl

from analyzers.readers.attributes import shorten
from analyzers.readers.spans import (
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    FindLife,
    FlatSpan,
    check_identifier,
    check_time,
)
from analyzers.readers.tally import BAD_SPAN, SpanError, Tally
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

_decoder = msgspec.json.Decoder(dict[str, Any])


def read_spans(stream: BinaryIO | str, label: str, find_life: FindLife, tally: Tally) -> Iterator[FlatSpan]:
    """Yield the spans of otel_cache in an open Parquet file, or at an address in object storage; count the rest.

    Raises:
        CaptureError: the file is damaged, cut off, or has not the columns of a capture.

    """
    lives: dict[str, int | SpanError] = {}
    number = 0
    for batch in _batches(stream, label):
        for trace, span, parent, name, start, end, resource, attributes, scope in batch.iter_rows():
            number += 1
            if scope != SCOPE:
                tally.foreign += 1
                continue
            where = f"{label} row {number}"
            try:
                yield FlatSpan(
                    _find_life(resource, lives, find_life),
                    check_identifier(trace, TRACE_ID_BYTES, "trace id"),
                    check_identifier(span, SPAN_ID_BYTES, "span id"),
                    check_identifier(parent, SPAN_ID_BYTES, "parent span id") if parent else "",
                    name or "",
                    check_time(start, "start"),
                    check_time(end, "end"),
                    _decode(attributes, "attributes"),
                    where,
                )
            except SpanError as error:
                tally.skip(BAD_SPAN, where, str(error))


def _batches(stream: BinaryIO | str, label: str) -> Iterator[pl.DataFrame]:
    try:
        scan = pl.scan_parquet(stream)
        schema = scan.collect_schema()
        for name, dtype in COLUMNS.items():
            if name not in schema:
                raise CaptureError(f"{label}: Parquet, but not a capture of otel-cache: it has no column {name!r}")
            if schema[name] != dtype:
                raise CaptureError(f"{label}: column {name!r} holds {schema[name]}, not {dtype()}")
        rows = scan.select(pl.len()).collect().item()
        for offset in range(0, rows, BATCH_ROWS):
            yield scan.select(list(COLUMNS)).slice(offset, BATCH_ROWS).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CaptureError(
            f"{label}: damaged Parquet, or one that is still being written ({reason}); "
            "wait for its writer to end, or take OTLP JSON lines, which can be read while they grow"
        ) from error


def _find_life(resource: str | None, lives: dict[str, int | SpanError], find_life: FindLife) -> int:
    """Return the handle of the life that a resource names; each resource is looked at once."""
    key = resource or "{}"
    life = lives.get(key)
    if life is None:
        try:
            life = find_life(_decode(key, "resource"))
        except SpanError as error:
            life = error
        lives[key] = life
    if isinstance(life, SpanError):
        raise life
    return life


def _decode(encoded: str | None, what: str) -> dict[str, Any]:
    try:
        return _decoder.decode(encoded or "{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SpanError(shorten(f"the {what} are not a JSON object ({error})")) from error
