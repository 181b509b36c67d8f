"""Spans to a file of OTLP JSON lines: one `{"resourceSpans": [...]}` object per line.

The form is that of the OpenTelemetry file exporter and of the collector's: camelCase names, trace and span ids in
lower-case hex, 64-bit integers as decimal strings, enumerations as integers.
"""

import logging
import os
import stat
from collections.abc import Sequence
from typing import Any

import msgspec

from otel_cache.errors import UsageError
from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink

_logger = logging.getLogger(__name__)

_KIND_INTERNAL = 1
_FLAG_KNOWS_REMOTE = 0x100
_FLAG_REMOTE = 0x200
_encoder = msgspec.json.Encoder()


class JsonLinesWriter:
    """Writes spans as they come; a line is in the file, for any reader, when `write` returns.

    Attributes:
        written: spans in the file.
        lost: spans that the disk refused.

    """

    def __init__(self, path: str, *, append: bool = False) -> None:
        """Open `path` for this user alone, and empty it, or go on after what it holds.

        Raises:
            UsageError: the file cannot be written.

        """
        self.path = path
        self.written = 0
        self.lost = 0
        self._torn = False
        try:
            how = os.O_APPEND if append else os.O_TRUNC
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(self._fd, 0o600)
                # A sidecar that was killed may have left half a line.
                self._torn = bool(status.st_size) and os.pread(self._fd, 1, status.st_size - 1) != b"\n"
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error

    def write(self, spans: Sequence[SpanData]) -> None:
        """Append `spans` as one line; what the disk refuses is counted, and logged once."""
        if not spans:
            return
        line = encode_line(spans)
        # After a line that was cut short the next one must not become its tail.
        data = memoryview(b"\n" + line if self._torn else line)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
                self._torn = bool(data)
        except OSError as error:
            if not self.lost:
                _logger.error("cannot write %s: %s (further failures are only counted)", self.path, error)
            self.lost += len(spans)
        else:
            self.written += len(spans)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def encode_line(spans: Sequence[SpanData]) -> bytes:
    """Return `spans` as one line, with its newline."""
    by_resource: dict[ReplicaResource, list[dict[str, Any]]] = {}
    for span in spans:
        by_resource.setdefault(span.resource, []).append(_span(span))
    scope = {"name": SCOPE, "version": VERSION}
    groups = [
        {"resource": _resource(resource), "scopeSpans": [{"scope": scope, "spans": group}]}
        for resource, group in by_resource.items()
    ]
    return _encoder.encode({"resourceSpans": groups}) + b"\n"


def _resource(resource: ReplicaResource) -> msgspec.Raw:
    # The same for every line of a replica's life: written once.
    if resource.json is None:
        resource.json = _encoder.encode({"attributes": _attributes(resource.attributes)})
    return msgspec.Raw(resource.json)


def _span(span: SpanData) -> dict[str, Any]:
    result: dict[str, Any] = _context(span.context)
    if span.trace_state:
        result["traceState"] = span.trace_state
    if span.parent is not None:
        result["parentSpanId"] = f"{span.parent.span_id:016x}"
    result["flags"] = _FLAG_KNOWS_REMOTE | (_FLAG_REMOTE if span.remote_parent else 0)
    result["name"] = span.name
    result["kind"] = _KIND_INTERNAL
    result["startTimeUnixNano"] = str(span.start)
    result["endTimeUnixNano"] = str(span.end)
    result["attributes"] = _attributes(span.attributes)
    if span.links:
        result["links"] = [_link(link) for link in span.links]
    result["status"] = {}
    return result


def _link(link: SpanLink) -> dict[str, Any]:
    result = _context(link.context)
    if link.attributes:
        result["attributes"] = _attributes(link.attributes)
    result["flags"] = _FLAG_KNOWS_REMOTE
    return result


def _context(context: Context) -> dict[str, Any]:
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(element) for element in value]}}
