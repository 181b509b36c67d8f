"""OTLP JSON lines, as the sidecar and the collector's file exporter write them, to flat spans.

A line is one `TracesData` message of the OTLP file format. Spans are decoded one by one, so that a damaged one costs
itself and not its line, and those of other programs are counted without being decoded.
"""

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from analyzers.readers.attributes import shorten
from analyzers.readers.sources import BOM
from analyzers.readers.spans import (
    FOREIGN,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    FindLife,
    FlatSpan,
    check_identifier,
    check_time,
)
from analyzers.readers.tally import BAD_SPAN, NOT_JSON, NOT_OTLP, SpanError, Tally
from otel_cache.errors import CaptureError
from otel_cache.package import SCOPE

MAX_LINE_BYTES = 256 << 20
"""A longer line is not held in memory but passed over: exporters batch far less."""
TELLING = (b"gen_ai.usage.", b"llm_d.kv_cache.prefix_match.")
"""What only spans hold that say how many tokens a model was given, or how much of a prompt a router saw cached."""

_ABSENT = msgspec.Raw()


class _Camel(msgspec.Struct, gc=False, rename="camel"):
    """Fields are named as in OTLP JSON, where every field may be absent or null."""


class _Array(_Camel):
    values: "list[_Value] | None" = None


class _Value(_Camel):
    string_value: str | None = None
    int_value: int | str | None = None
    bool_value: bool | None = None
    double_value: float | str | None = None
    bytes_value: str | None = None
    array_value: _Array | None = None
    kvlist_value: msgspec.Raw = _ABSENT


class _Attribute(_Camel):
    key: str = ""
    value: _Value | None = None


class _Span(_Camel):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[_Attribute] | None = None


class _Scope(_Camel):
    name: str | None = None


class _ScopeSpans(_Camel):
    scope: _Scope | None = None
    spans: list[msgspec.Raw] | None = None


class _ResourceSpans(_Camel):
    resource: msgspec.Raw = _ABSENT
    scope_spans: list[_ScopeSpans] | None = None


class _Line(_Camel):
    resource_spans: list[_ResourceSpans] | None = None
    resource_logs: msgspec.Raw = _ABSENT
    resource_metrics: msgspec.Raw = _ABSENT
    resource_profiles: msgspec.Raw = _ABSENT


class _Resource(_Camel):
    attributes: list[_Attribute] | None = None


_line_decoder = msgspec.json.Decoder(_Line)
_span_decoder = msgspec.json.Decoder(_Span)
_resource_decoder = msgspec.json.Decoder(_Resource)

# What msgspec raises on damaged input: text that is no UTF-8, and nesting beyond the interpreter's depth, included.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_spans(stream: BinaryIO, label: str, find_life: FindLife, tally: Tally) -> Iterator[FlatSpan]:
    """Yield the spans of otel_cache in `stream`; count what is something else, or cannot be read.

    Spans of other programs that name token usage come too, with the life `FOREIGN`; they count as foreign.

    Raises:
        CaptureError: the device fails while reading.

    """
    resources: dict[bytes, int | SpanError] = {}
    for number, line in _lines(stream, label, tally):
        where = f"{label} line {number}"
        try:
            decoded = _line_decoder.decode(line)
        except _DECODE_ERRORS as error:
            _skip_line(line, where, error, tally)
            continue
        if decoded.resource_spans is None:
            if (
                decoded.resource_logs
                or decoded.resource_metrics
                or decoded.resource_profiles
                or line.split() == [b"{}"]
            ):
                tally.foreign += 1
            else:
                tally.skip(NOT_OTLP, where, "not OTLP (JSON, but without resourceSpans)")
            continue
        for resource_spans in decoded.resource_spans:
            life: int | SpanError | None = None
            for scope_spans in resource_spans.scope_spans or ():
                spans = scope_spans.spans or ()
                if scope_spans.scope is None or scope_spans.scope.name != SCOPE:
                    tally.foreign += len(spans)
                    yield from _usages(spans, where)
                    continue
                if life is None:
                    life = _find_life(resource_spans.resource, resources, find_life)
                for raw in spans:
                    try:
                        if isinstance(life, SpanError):
                            raise life
                        yield _flatten_span(raw, life, where)
                    except SpanError as error:
                        tally.skip(BAD_SPAN, where, str(error))


def _lines(stream: BinaryIO, label: str, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers, from 1, and the bytes of the lines that are not blank."""
    number = 0
    try:
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                tally.skip(NOT_JSON, f"{label} line {number}", f"longer than {MAX_LINE_BYTES >> 20} MiB, passed over")
                continue
            if number == 1:
                line = line.removeprefix(BOM)
            if not line.isspace():
                yield number, line
    except (EOFError, zlib.error) as error:
        # The tail of a compressed file that was still being written.
        tally.skip(NOT_JSON, f"{label} after line {number}", f"cut off ({error})")
    except OSError as error:
        raise CaptureError(f"{label}: cannot be read ({error.strerror or error})") from error


def _skip_line(line: bytes, where: str, error: Exception, tally: Tally) -> None:
    if isinstance(error, msgspec.ValidationError):
        tally.skip(NOT_OTLP, where, shorten(f"not OTLP ({error})"))
    elif isinstance(error, RecursionError):
        tally.skip(NOT_JSON, where, "not JSON that can be read (nested too deeply)")
    elif not line.endswith(b"\n"):
        tally.skip(NOT_JSON, where, shorten(f"not JSON (the last line is cut off: {error})"))
    else:
        tally.skip(NOT_JSON, where, shorten(f"not JSON ({error})"))


def _find_life(raw: msgspec.Raw, resources: dict[bytes, int | SpanError], find_life: FindLife) -> int | SpanError:
    """Return the handle of the life that a resource names, or why it names none; each resource is looked at once."""
    encoded = bytes(raw) or b"{}"
    life = resources.get(encoded)
    if life is None:
        try:
            life = find_life(_flatten(_resource_decoder.decode(encoded).attributes))
        except _DECODE_ERRORS as error:
            life = SpanError(shorten(f"its resource is not OTLP ({error})"))
        except SpanError as error:
            life = error
        resources[encoded] = life
    return life


def _usages(spans: Sequence[msgspec.Raw], where: str) -> Iterator[FlatSpan]:
    """Yield the spans of other programs that speak of tokens or cached blocks; what is damaged is nothing of ours."""
    for raw in spans:
        encoded = bytes(raw)
        if any(name in encoded for name in TELLING):
            with contextlib.suppress(SpanError):
                yield _flatten_span(raw, FOREIGN, where)


def _flatten_span(raw: msgspec.Raw, life: int, where: str) -> FlatSpan:
    try:
        span = _span_decoder.decode(raw)
    except _DECODE_ERRORS as error:
        raise SpanError(shorten(f"a span is not OTLP ({error})")) from error
    return FlatSpan(
        life,
        check_identifier(span.trace_id, TRACE_ID_BYTES, "trace id"),
        check_identifier(span.span_id, SPAN_ID_BYTES, "span id"),
        check_identifier(span.parent_span_id, SPAN_ID_BYTES, "parent span id") if span.parent_span_id else "",
        span.name or "",
        check_time(span.start_time_unix_nano, "start"),
        check_time(span.end_time_unix_nano, "end"),
        _flatten(span.attributes),
        where,
    )


def _flatten(attributes: list[_Attribute] | None) -> dict[str, Any]:
    # One function with a branch per type, for most of the reading time is spent here.
    plain: dict[str, Any] = {}
    try:
        for each in attributes or ():
            value = each.value
            if value is None:
                continue
            if value.int_value is not None:
                plain[each.key] = int(value.int_value)
            elif value.string_value is not None:
                plain[each.key] = value.string_value
            elif value.array_value is not None:
                plain[each.key] = [_plain(item) for item in value.array_value.values or ()]
            else:
                plain[each.key] = _plain(value)
    except ValueError as error:
        raise SpanError(shorten(f"an attribute is not a number ({error})")) from error
    return plain


def _plain(value: _Value) -> Any:
    """Return what an OTLP value holds; numbers may stand in quotes, as Protobuf's JSON has them.

    Bytes stay base64, as they are written; nested maps are not ours and come out as None.
    """
    if value.int_value is not None:
        return int(value.int_value)
    if value.string_value is not None:
        return value.string_value
    if value.bool_value is not None:
        return value.bool_value
    if value.double_value is not None:
        return float(value.double_value)
    if value.array_value is not None:
        return [_plain(each) for each in value.array_value.values or ()]
    return value.bytes_value
