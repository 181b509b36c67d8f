"""Spans to a file of OTLP JSON lines: one `{"resourceSpans": [...]}` object per line.

The form is that of the OpenTelemetry file exporter and of the collector's: camelCase names, trace and span ids in
lower-case hex, 64-bit integers as decimal strings, enumerations as integers.
"""

import errno
import json
import logging
import os
import select
import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

from otel_cache.errors import UsageError
from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink

_logger = logging.getLogger(__name__)

_KIND_INTERNAL = 1
_FLAG_KNOWS_REMOTE = 0x100
_FLAG_REMOTE = 0x200
_MAX_KEYS = 1024
PATIENCE_SECONDS = 5.0
"""How long one write waits for whoever reads a pipe or a terminal to make room."""
_quote = json.encoder.encode_basestring
_SCOPE = f'{{"name":{_quote(SCOPE)},"version":{_quote(VERSION)}}}'


class JsonLinesWriter:
    """Writes spans as they come; a line is in the file, for any reader, when `write` returns.

    The file may be a pipe: while its reader takes nothing for `PATIENCE_SECONDS`, further lines are lost.

    Attributes:
        written: spans in the file.
        lost: spans that the disk refused.
        kept: nothing has been written, and the file holds what it held before.

    """

    def __init__(self, path: str, *, append: bool = False) -> None:
        """Open `path` for this user alone: the first spans replace what it holds, or are appended to it.

        Raises:
            UsageError: the file cannot be written.

        """
        self.path = path
        self.written = 0
        self.lost = 0
        self._torn = False
        self._stalled = False
        self.kept = False
        try:
            how = os.O_APPEND if append else 0
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(self._fd, 0o600)
                # A sidecar that was killed may have left half a line.
                self.kept = bool(status.st_size) and not append
                self._torn = bool(status.st_size) and append and os.pread(self._fd, 1, status.st_size - 1) != b"\n"
            else:
                os.set_blocking(self._fd, False)
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
            if self.kept:
                os.ftruncate(self._fd, 0)
                self.kept = False
            while data:
                data = data[self._write_some(data) :]
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

    def _write_some(self, data: memoryview) -> int:
        """Write what there is room for, and return how much that was.

        Raises:
            OSError: the disk refuses it, or nobody reads the pipe.

        """
        while True:
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                # One that has waited in vain is not to hold up everything once more for each line.
                poller = select.poll()
                poller.register(self._fd, select.POLLOUT)
                if not poller.poll(0 if self._stalled else PATIENCE_SECONDS * 1000):
                    self._stalled = True
                    raise OSError(errno.EAGAIN, "nobody reads it") from None
            else:
                self._stalled = False
                return written


def encode_line(spans: Sequence[SpanData]) -> bytes:
    """Return `spans` as one line, with its newline."""
    by_resource: dict[ReplicaResource, list[str]] = {}
    for span in spans:
        by_resource.setdefault(span.resource, []).append(_span(span))
    groups = [
        f'{{"resource":{_resource(resource)},"scopeSpans":[{{"scope":{_SCOPE},"spans":[{",".join(group)}]}}]}}'
        for resource, group in by_resource.items()
    ]
    # Environment variables may hold bytes that are no text; JSON may not.
    return f'{{"resourceSpans":[{",".join(groups)}]}}\n'.encode("utf-8", "replace")


def _resource(resource: ReplicaResource) -> str:
    # The same for every line of a replica's life: written once.
    if resource.json is None:
        resource.json = f'{{"attributes":{_attributes(resource.attributes)}}}'
    return resource.json


def _span(span: SpanData) -> str:
    context = span.context
    state = f'"traceState":{_quote(span.trace_state)},' if span.trace_state else ""
    parent = f'"parentSpanId":"{span.parent.span_id.hex()}",' if span.parent is not None else ""
    flags = _FLAG_KNOWS_REMOTE | (_FLAG_REMOTE if parent and span.remote_parent else 0)
    links = f'"links":[{",".join(map(_link, span.links))}],' if span.links else ""
    return (
        f'{{"traceId":"{context.trace_id.hex()}","spanId":"{context.span_id.hex()}",{state}{parent}"flags":{flags},'
        f'"name":{_quote(span.name)},"kind":{_KIND_INTERNAL},"startTimeUnixNano":"{span.start}",'
        f'"endTimeUnixNano":"{span.end}","attributes":{_attributes(span.attributes)},{links}"status":{{}}}}'
    )


def _link(link: SpanLink) -> str:
    trace_id, span_id = link.context.trace_id.hex(), link.context.span_id.hex()
    attributes = f'"attributes":{_attributes(link.attributes)},' if link.attributes else ""
    return f'{{"traceId":"{trace_id}","spanId":"{span_id}",{attributes}"flags":{_FLAG_KNOWS_REMOTE}}}'


def _attributes(attributes: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in attributes.items():
        key = _key(name)
        kind = type(value)
        if kind is int:
            parts.append(f'{key}{{"intValue":"{value}"}}}}')
        elif kind is str:
            parts.append(f'{key}{{"stringValue":{_quote(value)}}}}}')
        else:
            parts.append(f"{key}{_value(value)}}}")
    return f"[{','.join(parts)}]"


@lru_cache(maxsize=_MAX_KEYS)
def _key(name: str) -> str:
    return f'{{"key":{_quote(name)},"value":'


def _value(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return f'{{"stringValue":{_quote(value)}}}'
    if kind is bool:
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if kind is int:
        return f'{{"intValue":"{value}"}}'
    if kind is float:
        return f'{{"doubleValue":{_double(value)}}}'
    return f'{{"arrayValue":{{"values":[{",".join(map(_value, value))}]}}}}'


def _double(value: float) -> str:
    # JSON has no numbers for these; Protobuf's JSON writes their names.
    if isfinite(value):
        return repr(value)
    return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
