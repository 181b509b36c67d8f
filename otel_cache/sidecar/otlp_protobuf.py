"""Spans to an OTLP `ExportTraceServiceRequest`, written as bytes without a message object in between.

Most of a span is the same every time: the names of its attributes, the tags and lengths around them, the resource. All
of that is encoded once and kept. The field numbers are those of opentelemetry-proto: common/v1/common.proto,
resource/v1/resource.proto, trace/v1/trace.proto and collector/trace/v1/trace_service.proto.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink

_MAX_KEYS = 4096
_INT64 = range(-(1 << 63), 1 << 63)
_BYTE = [bytes((value,)) for value in range(128)]

_pack_double = struct.Struct("<d").pack
_pack_span_head = struct.Struct(">BB16sBB8s").pack
_pack_times = struct.Struct("<BQBQ").pack
_pack_flags = struct.Struct("<BI").pack

# Tags: field number << 3 | wire type, which is 0 for a varint, 1 for 8 bytes, 2 for a length and bytes, 5 for 4 bytes.
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5
_SPAN_TRACE_ID, _SPAN_ID = 1 << 3 | _BYTES, 2 << 3 | _BYTES
_SPAN_TRACE_STATE, _SPAN_PARENT = bytes((3 << 3 | _BYTES,)), bytes((4 << 3 | _BYTES, 8))
_SPAN_NAME, _SPAN_KIND_INTERNAL = bytes((5 << 3 | _BYTES,)), bytes((6 << 3, 1))
_SPAN_START, _SPAN_END = 7 << 3 | _FIXED64, 8 << 3 | _FIXED64
_SPAN_ATTRIBUTE, _SPAN_LINK = bytes((9 << 3 | _BYTES,)), bytes((13 << 3 | _BYTES,))
_SPAN_STATUS_UNSET = bytes((15 << 3 | _BYTES, 0))
# Field 16: its tag has two bytes.
_SPAN_FLAGS = bytes((0x85, 0x01)) + (0x100).to_bytes(4, "little")
_SPAN_FLAGS_REMOTE = bytes((0x85, 0x01)) + (0x300).to_bytes(4, "little")
_LINK_ATTRIBUTE = bytes((4 << 3 | _BYTES,))
_LINK_FLAGS = _pack_flags(6 << 3 | _FIXED32, 0x100)
_FIRST, _SECOND = bytes((1 << 3 | _BYTES,)), bytes((2 << 3 | _BYTES,))
_VALUE_STRING, _VALUE_ARRAY = bytes((1 << 3 | _BYTES,)), bytes((5 << 3 | _BYTES,))
_VALUE_FALSE, _VALUE_TRUE = bytes((2 << 3, 0)), bytes((2 << 3, 1))
_VALUE_INT, _VALUE_DOUBLE = bytes((3 << 3,)), bytes((4 << 3 | _FIXED64,))


def encode_spans(spans: Sequence[SpanData]) -> bytes:
    """Return the request that exports `spans`, grouped by resource.

    An integer that OTLP cannot hold (beyond 64 bits, signed) is left out with its attribute.
    """
    by_resource: dict[ReplicaResource, list[bytes]] = {}
    for span in spans:
        group = by_resource.get(span.resource)
        if group is None:
            group = by_resource[span.resource] = [_resource(span.resource), _SCOPE_HEAD]
        body = _span(span)
        group += (_SECOND, _length(len(body)), body)
    parts: list[bytes] = []
    for resource, scope, *encoded in by_resource.values():
        scope_spans = b"".join((scope, *encoded))
        body = b"".join((resource, _SECOND, _varint(len(scope_spans)), scope_spans))
        parts += (_FIRST, _varint(len(body)), body)
    return b"".join(parts)


def _span(span: SpanData) -> bytes:
    trace_id, span_id, _ = span.context
    head = _pack_span_head(_SPAN_TRACE_ID, 16, trace_id.to_bytes(16, "big"), _SPAN_ID, 8, span_id.to_bytes(8, "big"))
    parts = [head]
    if span.trace_state:
        parts.append(_field(_SPAN_TRACE_STATE, _text(span.trace_state)))
    flags = _SPAN_FLAGS
    if span.parent is not None:
        flags = _SPAN_FLAGS_REMOTE if span.remote_parent else _SPAN_FLAGS
        parts += (_SPAN_PARENT, span.parent[1].to_bytes(8, "big"))
    parts += (_name(span.name), _pack_times(_SPAN_START, span.start, _SPAN_END, span.end))
    _attributes(parts, _SPAN_ATTRIBUTE, span.attributes)
    for link in span.links:
        body = _link(link)
        parts += (_SPAN_LINK, _length(len(body)), body)
    parts += (_SPAN_STATUS_UNSET, flags)
    return b"".join(parts)


def _link(link: SpanLink) -> bytes:
    trace_id, span_id, _ = link.context
    head = _pack_span_head(_SPAN_TRACE_ID, 16, trace_id.to_bytes(16, "big"), _SPAN_ID, 8, span_id.to_bytes(8, "big"))
    if not link.attributes:
        return head + _LINK_FLAGS
    parts = [head]
    _attributes(parts, _LINK_ATTRIBUTE, link.attributes)
    parts.append(_LINK_FLAGS)
    return b"".join(parts)


def _attributes(parts: list[bytes], tag: bytes, attributes: Mapping[str, Any]) -> None:
    """Append a field `tag` with a `KeyValue` for each attribute."""
    for key, value in attributes.items():
        encoded = _value(value)
        if encoded is None:
            continue
        name = _key(key)
        size = len(encoded)
        # A KeyValue is the name and, in field 2, the value.
        if size < 128:
            length = len(name) + 2 + size
            parts += (tag, _length(length), name, _SECOND, _BYTE[size], encoded)
        else:
            value_length = _varint(size)
            length = len(name) + 1 + len(value_length) + size
            parts += (tag, _varint(length), name, _SECOND, value_length, encoded)


def _value(value: Any) -> bytes | None:
    """Return an `AnyValue`; None where it cannot be written."""
    kind = type(value)
    if kind is str:
        text = _text(value)
        return _VALUE_STRING + _length(len(text)) + text
    if kind is int:
        if 0 <= value < 128:
            return _SMALL_INTS[value]
        return _VALUE_INT + _varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value in _INT64 else None
    if kind is bool:
        return _VALUE_TRUE if value else _VALUE_FALSE
    if kind is float:
        double: bytes = _pack_double(value)
        return _VALUE_DOUBLE + double
    body = _array(value)
    return None if body is None else _VALUE_ARRAY + _length(len(body)) + body


def _array(values: Iterable[Any]) -> bytes | None:
    parts: list[bytes] = []
    for each in values:
        encoded = _value(each)
        if encoded is None:
            return None
        parts += (_FIRST, _length(len(encoded)), encoded)
    return b"".join(parts)


def _resource(resource: ReplicaResource) -> bytes:
    # The same for every request of a replica's life: written once.
    if resource.protobuf is None:
        parts: list[bytes] = []
        _attributes(parts, _FIRST, resource.attributes)
        resource.protobuf = _field(_FIRST, b"".join(parts))
    return resource.protobuf


@lru_cache(maxsize=_MAX_KEYS)
def _key(key: str) -> bytes:
    return _field(_FIRST, _text(key))


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    return _field(_SPAN_NAME, _text(name)) + _SPAN_KIND_INTERNAL


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(text: str) -> bytes:
    # Environment variables may hold bytes that are no text; protobuf strings may not.
    return text.encode("utf-8", "replace")


def _length(size: int) -> bytes:
    return _BYTE[size] if size < 128 else _varint(size)


def _varint(value: int) -> bytes:
    if value < 128:
        return _BYTE[value]
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_SMALL_INTS = [_VALUE_INT + _BYTE[value] for value in range(128)]
_SCOPE_HEAD = _field(_FIRST, _field(_FIRST, _text(SCOPE)) + _field(_SECOND, _text(VERSION)))
