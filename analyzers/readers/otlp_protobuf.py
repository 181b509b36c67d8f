"""OTLP's Protobuf, as the collector's file exporter writes it, to typed columns.

A record is one `TracesData` message, which an export request looks like. Spans with the same attributes become columns
together; what does not have the types of the registry is read span by span.
"""

import contextlib
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

from analyzers.readers import otlp_json
from analyzers.readers.attributes import shorten
from analyzers.readers.columns import BatchBuilder, Lists
from analyzers.readers.framing import Record
from analyzers.readers.protobuf_metrics import read_metrics
from analyzers.readers.protobuf_values import flatten
from analyzers.readers.spans import FOREIGN, FlatSpan, checked_span
from analyzers.readers.tally import BAD_SPAN, NOT_OTLP, SpanError
from otel_cache.package import SCOPE
from otel_cache.semconv.types import SPAN_TYPES

TELLING = tuple(name.decode() for name in otlp_json.TELLING)
PLAIN_RECORDS = 64
"""So many messages are decoded at a time: more would not fit into the processor's cache as objects."""

_key = attrgetter("key")
_base = attrgetter("trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano")
_attributes, _value = attrgetter("attributes"), attrgetter("value")
# Which field of a value each type has.
_FIELDS = {"int": "int_value", "string": "string_value", "boolean": "bool_value", "double": "double_value"}
_FIELD_GETTERS = {kind: attrgetter(field) for kind, field in _FIELDS.items()}

_Owner = tuple[int, int]
"""Index of the resource, and number of the message."""


class _Misfit(Exception):
    """Spans that have to be read one by one."""


_Shapes = dict[tuple[str, ...], list[tuple[Span, _Owner]]]


def read(records: Sequence[Record], builder: BatchBuilder) -> None:
    """Give the spans in messages to `builder`; what cannot be read is counted there. Messages may hold JSON."""
    for at in range(0, len(records), PLAIN_RECORDS):
        shapes: _Shapes = {}
        for record in records[at : at + PLAIN_RECORDS]:
            if record.data.startswith(b"{"):
                otlp_json.read([record], builder)
            else:
                _read(record, builder, shapes)
        for (name, *keys), spans in shapes.items():
            try:
                _add_shape(name, keys, spans, builder)
            except (_Misfit, KeyError):
                for span, (resource, number) in spans:
                    _add(span, resource, number, builder)


def _read(record: Record, builder: BatchBuilder, shapes: _Shapes) -> None:
    tally = builder.batch.tally
    if (metrics := read_metrics(record.data)) is not None:
        builder.batch.points += metrics
        return
    try:
        message = TracesData.FromString(record.data)
    except DecodeError as error:
        builder.skip(NOT_OTLP, record.number, shorten(f"not OTLP ({error})"))
        return
    if not message.resource_spans:
        tally.foreign += 1
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            spans = scope_spans.spans
            if scope_spans.scope.name != SCOPE:
                tally.foreign += len(spans)
                builder.batch.foreign.extend(_telling(spans))
                continue
            owner = _resource(resource_spans, builder), record.number
            for span in spans:
                shapes.setdefault((span.name, *map(_key, span.attributes)), []).append((span, owner))


def _add_shape(name: str, keys: Sequence[str], spans: Sequence[tuple[Span, _Owner]], builder: BatchBuilder) -> None:
    """Make columns of spans that have the same attributes.

    Raises:
        KeyError, _Misfit: an attribute is not in the registry, stands twice, or has another type than there.

    """
    if len(set(keys)) < len(keys):
        raise _Misfit
    kinds = [SPAN_TYPES[key] for key in keys]
    decoded, owners = zip(*spans, strict=True)
    traces, ids, parents, starts, ends = zip(*map(_base, decoded), strict=True)
    hexed = [[each.hex() for each in column] for column in (traces, ids, parents)]
    columns: list[Sequence[Any] | Lists] = [*zip(*owners, strict=True), *hexed, starts, ends]
    for kind, attributes in zip(kinds, zip(*map(_attributes, decoded), strict=True), strict=True):
        values = list(map(_value, attributes))
        columns.append(_arrays(values, kind) if kind.endswith("[]") else _plain_values(values, kind))
    builder.add_columns(name, keys, columns)


def _plain_values(values: Sequence[AnyValue], kind: str) -> list[Any]:
    field = _FIELDS[kind]
    plain = list(map(_FIELD_GETTERS[kind], values))
    if not all(plain):
        # A value of another type looks like the default of this one.
        for each, value in zip(plain, values, strict=True):
            if not each and value.WhichOneof("value") != field:
                raise _Misfit
    return plain


def _arrays(values: Sequence[AnyValue], kind: str) -> Lists:
    arrays = [value.array_value.values for value in values]
    lists = Lists([element for array in arrays for element in array], list(map(len, arrays)))
    if not all(lists.lengths):
        for value, length in zip(values, lists.lengths, strict=True):
            if not length and value.WhichOneof("value") != "array_value":
                raise _Misfit
    lists.flat = _plain_values(lists.flat, kind[:-2])
    return lists


def _add(span: Span, resource: int, number: int, builder: BatchBuilder) -> None:
    """Add a span with an attribute that the registry has not, or not so."""
    try:
        builder.add(_flatten_span(span, resource), number)
    except SpanError as error:
        builder.skip(BAD_SPAN, number, str(error))


def _resource(resource_spans: ResourceSpans, builder: BatchBuilder) -> int:
    """Return the index of a resource; each is looked at once."""
    encoded = resource_spans.resource.SerializeToString(deterministic=True)
    known = builder.known_resource(encoded)
    return builder.resource(encoded, flatten(resource_spans.resource.attributes)) if known is None else known


def read_resource(encoded: bytes, builder: BatchBuilder) -> int:
    """Return the index of a resource that is not decoded yet.

    Raises:
        SpanError: it is damaged.

    """
    try:
        return _resource(ResourceSpans(resource=Resource.FromString(encoded)), builder)
    except DecodeError as error:
        raise SpanError(shorten(f"its resource is not OTLP ({error})")) from error


def _telling(spans: Iterable[Span]) -> list[FlatSpan]:
    """Return the spans of other programs that speak of tokens or cached blocks."""
    found = []
    for span in spans:
        if any(each.key.startswith(TELLING) for each in span.attributes):
            with contextlib.suppress(SpanError):
                found.append(_flatten_span(span, FOREIGN))
    return found


def _flatten_span(span: Span, life: int) -> FlatSpan:
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return checked_span(life, *ids, span.name, *times, flatten(span.attributes))
