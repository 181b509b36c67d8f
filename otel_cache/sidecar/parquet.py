"""The evidence as one Parquet file, made when the capture ends.

While the sidecar runs, OTLP JSON lines go to `FILE.part.jsonl`, which stays if the sidecar is killed and is a capture
of its own. The Parquet file has one row per span, compressed with zstd:

    trace_id        str, 32 lower-case hex digits
    span_id         str, 16 lower-case hex digits
    parent_span_id  str, "" for a root
    name            str
    kind            i32, as in OTLP: 1 is INTERNAL
    start, end      i64, nanoseconds since the epoch
    resource        str, JSON object: attribute name to value
    attributes      str, JSON object: attribute name to value
    trace_state     str, "" for none
    links           str, JSON array of {"trace_id": ..., "span_id": ..., "attributes": {...}}, without empty ones
    scope           str, name of the instrumentation scope

In the JSON objects a value is a string, a number, a boolean or an array of one of them; integers are exact.
"""

import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from otel_cache.sidecar.otlp_json import JsonLinesWriter
from otel_cache.sidecar.spans import SpanData

if TYPE_CHECKING:
    import polars as pl

_logger = logging.getLogger(__name__)

PART_SUFFIX = ".part.jsonl"
ROWS = 10_000
"""Spans that are converted at a time: what bounds the memory."""
_COLUMNS = (
    "trace_id", "span_id", "parent_span_id", "name", "kind", "start", "end", "resource", "attributes",
    "trace_state", "links", "scope",
)  # fmt: skip
_Row = tuple[str, str, str, str, int, int, int, str, str, str, str, str]


class ParquetWriter:
    """Writes JSON lines while the capture runs and turns them into `path` at the end.

    Attributes:
        written: spans in the file.
        lost: spans that the disk refused.

    """

    def __init__(self, path: str, *, append: bool = False) -> None:
        """Open the part file beside `path`; where that may not be replaced, beside the next free name after it.

        Raises:
            UsageError: it cannot be written.

        """
        self.path = _free(path) if append else path
        # A part file under that name is what a sidecar that was killed left: it becomes part of this capture.
        self._part = JsonLinesWriter(self.path + PART_SUFFIX, append=append)
        self._earlier = Path(self.path).exists()

    @property
    def kept(self) -> bool:
        """Whether nothing has been written, and an earlier capture is there as it was."""
        return self._part.kept or (self._earlier and not self.written and not self.lost)

    @property
    def written(self) -> int:
        """Spans in the file."""
        return self._part.written

    @property
    def lost(self) -> int:
        """Spans that the disk refused."""
        return self._part.lost

    def write(self, spans: list[SpanData]) -> None:
        """Append `spans` to the part file."""
        self._part.write(spans)

    def close(self) -> None:
        """Make the Parquet file, but not over an earlier one for want of spans; then remove the part file."""
        self._part.close()
        if self.kept:
            # A part file that is not empty is a capture of its own, which a sidecar that was killed left.
            if not self._part.kept:
                Path(self._part.path).unlink()
            elif not self._earlier:
                self.path = self._part.path
            return
        try:
            convert(self._part.path, self.path)
        except Exception as error:
            _logger.error("cannot make %s: %s; the capture is in %s", self.path, error, self._part.path)
            self.path = self._part.path
        else:
            Path(self._part.path).unlink()


def _free(path: str) -> str:
    """Return `path`, or `name.1.parquet`, `name.2.parquet`, ...: the first that does not exist."""
    wanted = Path(path)
    names = (wanted.with_suffix(f".{number}{wanted.suffix}") for number in itertools.count(1))
    return str(wanted if not wanted.exists() else next(name for name in names if not name.exists()))


def convert(lines: str, path: str) -> None:
    """Turn the OTLP JSON lines of the file `lines` into the Parquet file `path`; a torn last line is left out.

    Raises:
        OSError, polars.exceptions.PolarsError: a file cannot be read or written.

    """
    import polars as pl
    from polars.io.plugins import register_io_source

    schema = pl.Schema(
        {name: pl.Int64 if name in ("start", "end") else pl.Int32 if name == "kind" else pl.String for name in _COLUMNS}
    )

    def frames(
        with_columns: list[str] | None, predicate: "pl.Expr | None", n_rows: int | None, batch_size: int | None
    ) -> Iterator["pl.DataFrame"]:
        for rows in _batches(lines):
            yield pl.DataFrame(rows, schema=schema, orient="row")

    temporary = path + ".tmp"
    # Made first, with its mode, so that no other user ever reads it.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        register_io_source(frames, schema=schema).sink_parquet(temporary, compression="zstd")
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _batches(lines: str) -> Iterator[list[_Row]]:
    rows: list[_Row] = []
    with Path(lines).open("rb") as file:
        for line in file:
            try:
                parsed = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            rows.extend(_rows(parsed))
            if len(rows) >= ROWS:
                yield rows
                rows = []
    # An empty capture is a file without a row, not a missing one.
    yield rows


def _rows(parsed: dict[str, Any]) -> Iterator[_Row]:
    for resource_spans in parsed["resourceSpans"]:
        resource = _object(resource_spans["resource"]["attributes"])
        for scope_spans in resource_spans["scopeSpans"]:
            scope = scope_spans["scope"]["name"]
            for span in scope_spans["spans"]:
                links = [_link(link) for link in span.get("links", ())]
                yield (
                    span["traceId"], span["spanId"], span.get("parentSpanId", ""), span["name"], span["kind"],
                    int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]), resource,
                    _object(span["attributes"]), span.get("traceState", ""), _json(links), scope,
                )  # fmt: skip


def _link(link: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {"trace_id": link["traceId"], "span_id": link["spanId"]}
    if link.get("attributes"):
        plain["attributes"] = {each["key"]: _plain(each["value"]) for each in link["attributes"]}
    return plain


def _object(attributes: list[dict[str, Any]]) -> str:
    return _json({attribute["key"]: _plain(attribute["value"]) for attribute in attributes})


def _plain(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [_plain(element) for element in content.get("values", ())]
    return int(content) if kind == "intValue" else content


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
