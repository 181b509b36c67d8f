"""OTLP's Protobuf, as the collector's file exporter writes it, to flat spans.

A message is one `TracesData`, which an export request looks like.
"""

import contextlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from analyzers.readers import otlp_json
from analyzers.readers.attributes import shorten
from analyzers.readers.counters import Point
from analyzers.readers.framing import Record
from analyzers.readers.spans import (
    FOREIGN,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    FindLife,
    FlatSpan,
    check_identifier,
    check_time,
)
from analyzers.readers.tally import BAD_SPAN, NOT_OTLP, SpanError, Tally
from otel_cache.package import SCOPE

TELLING = tuple(name.decode() for name in otlp_json.TELLING)


def read_spans(records: Iterable[Record], find_life: FindLife, tally: Tally) -> Iterator[FlatSpan | Point]:
    """Yield the spans of otel_cache in messages; count what is something else, or cannot be read.

    Messages of JSON may be among them. Spans of other programs that name token usage come too, with the life `FOREIGN`;
    they count as foreign.
    """
    lives: dict[bytes, int | SpanError] = {}
    for record in records:
        if record.data.startswith(b"{"):
            yield from otlp_json.read_spans([record], find_life, tally)
            continue
        try:
            message = TracesData.FromString(record.data)
        except DecodeError as error:
            tally.skip(NOT_OTLP, record.where, shorten(f"not OTLP ({error})"))
            continue
        if not message.resource_spans:
            tally.foreign += 1
        for resource_spans in message.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                yield from _spans(resource_spans, scope_spans, record.where, lives, find_life, tally)


def _spans(
    resource_spans: ResourceSpans,
    scope_spans: ScopeSpans,
    where: str,
    lives: dict[bytes, int | SpanError],
    find_life: FindLife,
    tally: Tally,
) -> Iterator[FlatSpan]:
    if scope_spans.scope.name != SCOPE:
        tally.foreign += len(scope_spans.spans)
        for span in scope_spans.spans:
            if any(each.key.startswith(TELLING) for each in span.attributes):
                with contextlib.suppress(SpanError):
                    yield _flatten_span(span, FOREIGN, where)
        return
    life = _find_life(resource_spans, lives, find_life)
    for span in scope_spans.spans:
        try:
            if isinstance(life, SpanError):
                raise life
            yield _flatten_span(span, life, where)
        except SpanError as error:
            tally.skip(BAD_SPAN, where, str(error))


def _find_life(
    resource_spans: ResourceSpans, lives: dict[bytes, int | SpanError], find_life: FindLife
) -> int | SpanError:
    """Return the handle of the life that a resource names, or why it names none; each resource is looked at once."""
    key = resource_spans.resource.SerializeToString(deterministic=True)
    life = lives.get(key)
    if life is None:
        try:
            life = find_life(_flatten(resource_spans.resource.attributes))
        except SpanError as error:
            life = error
        lives[key] = life
    return life


def _flatten_span(span: Span, life: int, where: str) -> FlatSpan:
    return FlatSpan(
        life,
        check_identifier(span.trace_id.hex(), TRACE_ID_BYTES, "trace id"),
        check_identifier(span.span_id.hex(), SPAN_ID_BYTES, "span id"),
        check_identifier(span.parent_span_id.hex(), SPAN_ID_BYTES, "parent span id") if span.parent_span_id else "",
        span.name,
        check_time(span.start_time_unix_nano, "start"),
        check_time(span.end_time_unix_nano, "end"),
        _flatten(span.attributes),
        where,
    )


def _flatten(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    plain = {each.key: _plain(each.value) for each in attributes}
    return {key: value for key, value in plain.items() if value is not None}


def _plain(value: AnyValue) -> Any:
    """Return what a value holds, as the JSON reader has it: bytes as base64, None for a nested map."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode()
    return None if kind is None or kind == "kvlist_value" else getattr(value, kind)
