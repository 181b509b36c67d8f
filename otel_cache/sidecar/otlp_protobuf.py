"""Spans to an OTLP `ExportTraceServiceRequest`, written as bytes without a message object in between.

The field numbers are those of opentelemetry-proto: resource/v1/resource.proto, trace/v1/trace.proto and
collector/trace/v1/trace_service.proto.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.otlp_attributes import (
    BYTES,
    FIRST,
    FIXED32,
    FIXED64,
    SECOND,
    Attributes,
    field,
    text,
    varint_of,
)
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink

_MAX_LINKS = 4096

_pack_times = struct.Struct("<BQBQ").pack

# Trace id and span id have the same field numbers in spans and in links.
_TRACE_ID, _SPAN_ID = bytes((1 << 3 | BYTES, 16)), bytes((2 << 3 | BYTES, 8))
_SPAN_TRACE_STATE, _SPAN_PARENT = bytes((3 << 3 | BYTES,)), bytes((4 << 3 | BYTES, 8))
_SPAN_NAME, _SPAN_KIND_INTERNAL = bytes((5 << 3 | BYTES,)), bytes((6 << 3, 1))
_SPAN_START, _SPAN_END = 7 << 3 | FIXED64, 8 << 3 | FIXED64
_SPAN_ATTRIBUTE, _SPAN_LINK = bytes((9 << 3 | BYTES,)), bytes((13 << 3 | BYTES,))
_SPAN_STATUS_UNSET = bytes((15 << 3 | BYTES, 0))
# Field 16: its tag has two bytes.
_SPAN_END_FIELDS = _SPAN_STATUS_UNSET + bytes((0x85, 0x01)) + (0x100).to_bytes(4, "little")
_SPAN_END_FIELDS_REMOTE = _SPAN_STATUS_UNSET + bytes((0x85, 0x01)) + (0x300).to_bytes(4, "little")
_LINK_ATTRIBUTE = bytes((4 << 3 | BYTES,))
_LINK_FLAGS = bytes((6 << 3 | FIXED32,)) + (0x100).to_bytes(4, "little")
_MAX_HEAD = 2048
_HEADS = [SECOND + varint_of(size) for size in range(_MAX_HEAD)]
"""What stands before a span of so many bytes."""
_SCOPE_HEAD = field(FIRST, field(FIRST, text(SCOPE)) + field(SECOND, text(VERSION)))

_of_span, _of_link, _of_resource = Attributes(_SPAN_ATTRIBUTE, 7, 1), Attributes(_LINK_ATTRIBUTE), Attributes(FIRST)
_encoders = _of_span.encoders


def encode_spans(spans: Sequence[SpanData]) -> bytes:
    """Return the request that exports `spans`, grouped by resource."""
    by_resource: dict[ReplicaResource, list[bytes]] = {}
    for span in spans:
        by_resource.setdefault(span.resource, []).append(encode_span(span))
    return encode_request(by_resource)


def encode_request(by_resource: Mapping[ReplicaResource, Sequence[bytes]]) -> bytes:
    """Return the request that exports the encoded spans of each resource."""
    parts: list[bytes] = []
    for resource, spans in by_resource.items():
        head = _resource(resource)
        size = len(_SCOPE_HEAD) + sum(map(len, spans))
        length = varint_of(size)
        parts += (FIRST, varint_of(len(head) + 1 + len(length) + size), head, SECOND, length, _SCOPE_HEAD, *spans)
    return b"".join(parts)


def split(
    by_resource: Mapping[ReplicaResource, Sequence[bytes]], limit: int
) -> Iterator[dict[ReplicaResource, list[bytes]]]:
    """Yield the encoded spans of each resource in parts of at most `limit` bytes, or of one span."""
    part: dict[ReplicaResource, list[bytes]] = {}
    size = 0
    for resource, spans in by_resource.items():
        for span in spans:
            if part and size + len(span) > limit:
                yield part
                part, size = {}, 0
            part.setdefault(resource, []).append(span)
            size += len(span)
    yield part


def encode_span(span: SpanData) -> bytes:
    """Return the span as it stands in a request.

    An integer that OTLP cannot hold (beyond 64 bits, signed) is left out with its attribute.
    """
    context, parent, values, shape = span.context, span.parent, span.values, span.shape
    encoder = _encoders.get(shape) or _of_span.encoder(span.attributes, shape)
    above, end = b"", _SPAN_END_FIELDS
    if parent is not None:
        above = _SPAN_PARENT + parent.span_id
        if span.remote_parent:
            end = _SPAN_END_FIELDS_REMOTE
    if span.trace_state:
        above = field(_SPAN_TRACE_STATE, text(span.trace_state)) + above
    if span.links:
        end = b"".join([_link(each) if each.attributes else _plain_link(each.context) for each in span.links]) + end
    body = encoder(
        _TRACE_ID, context.trace_id, _SPAN_ID, context.span_id, above, _name(span.name),
        _pack_times(_SPAN_START, span.start, _SPAN_END, span.end), end,
        values if isinstance(values, tuple) else tuple(values.values()),
    )  # fmt: skip
    size = len(body)
    return (_HEADS[size] if size < _MAX_HEAD else SECOND + varint_of(size)) + body


def _link(link: SpanLink) -> bytes:
    return field(_SPAN_LINK, _ids(link.context) + _of_link.encode(link.attributes) + _LINK_FLAGS)


@lru_cache(maxsize=_MAX_LINKS)
def _plain_link(context: Context) -> bytes:
    # Steps link to the same requests again and again.
    return field(_SPAN_LINK, _ids(context) + _LINK_FLAGS)


def _ids(context: Context) -> bytes:
    return _TRACE_ID + context.trace_id + _SPAN_ID + context.span_id


def _resource(resource: ReplicaResource) -> bytes:
    # The same for every request of a replica's life: written once.
    if resource.protobuf is None:
        resource.protobuf = field(FIRST, _of_resource.encode(resource.attributes))
    return resource.protobuf


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    return field(_SPAN_NAME, text(name)) + _SPAN_KIND_INTERNAL
