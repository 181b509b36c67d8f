"""Spans to an OTLP `ExportTraceServiceRequest`, written as bytes without a message object in between.

Most of a span is the same every time: the names of its attributes, the tags and lengths around them, the resource. All
of that is encoded once and kept. The field numbers are those of opentelemetry-proto: common/v1/common.proto,
resource/v1/resource.proto, trace/v1/trace.proto and collector/trace/v1/trace_service.proto.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink

_MAX_KEYS = 1024
_MAX_LINKS = 4096
_MAX_SHAPES = 1024
"""Sets of attributes that are known at once, by their names and types."""
_MAX_VALUES = 256
"""Values of one attribute that are kept in their encoded form."""
_MAX_INTEGER = 256
_MAX_VARINT = 1 << 14
"""Numbers below have at most 2 bytes of 7 bits."""
_MAX_TEXT = 64
"""Longer strings than so many bytes are not kept."""
_MAX_SIZE = 4096
"""Longer strings than so many bytes have the bytes in front of them made anew."""
_SHORT = 120
_MASK64 = (1 << 64) - 1
_INT64 = range(-(1 << 63), 1 << 63)
_BYTE = [bytes((value,)) for value in range(128)]

_pack_double = struct.Struct("<d").pack
_pack_ids = struct.Struct(">BB16sBB8s").pack
_pack_times = struct.Struct("<BQBQ").pack
_pack_flags = struct.Struct("<BI").pack

# Tags: field number << 3 | wire type, which is 0 for a varint, 1 for 8 bytes, 2 for a length and bytes, 5 for 4 bytes.
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5
_TRACE_ID, _SPAN_ID = 1 << 3 | _BYTES, 2 << 3 | _BYTES
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
    parts = [_ids(span.context)]
    if span.trace_state:
        parts.append(_field(_SPAN_TRACE_STATE, _text(span.trace_state)))
    flags = _SPAN_FLAGS
    if span.parent is not None:
        flags = _SPAN_FLAGS_REMOTE if span.remote_parent else _SPAN_FLAGS
        parts += (_SPAN_PARENT, span.parent[1].to_bytes(8, "big"))
    parts += (_name(span.name), _pack_times(_SPAN_START, span.start, _SPAN_END, span.end))
    parts.append(_attributes(_SPAN_KEYS, span.attributes))
    for link in span.links:
        parts.append(_link(link) if link.attributes else _plain_link(link.context))
    parts += (_SPAN_STATUS_UNSET, flags)
    return b"".join(parts)


def _link(link: SpanLink) -> bytes:
    attributes = _attributes(_LINK_KEYS, link.attributes)
    return _field(_SPAN_LINK, _ids(link.context) + attributes + _LINK_FLAGS)


@lru_cache(maxsize=_MAX_LINKS)
def _plain_link(context: Context) -> bytes:
    # Steps link to the same requests again and again.
    return _field(_SPAN_LINK, _ids(context) + _LINK_FLAGS)


def _ids(context: Context) -> bytes:
    """Return trace id and span id, which have the same field numbers in spans and in links."""
    ids = context[0].to_bytes(16, "big"), context[1].to_bytes(8, "big")
    return _pack_ids(_TRACE_ID, 16, ids[0], _SPAN_ID, 8, ids[1])


class _Key:
    """One attribute name in one kind of message, and what an attribute of this name looks like around its value.

    An attribute is a field `tag` with a `KeyValue`: the name, and in field 2 an `AnyValue`. All but the value itself
    depends on the name and the value's size alone, and values of one name often come again.
    """

    __slots__ = (
        "_integer_heads", "_name", "_single_heads", "_tag", "_text_heads", "empty", "false", "float_head", "integers",
        "numbers", "singles", "texts", "true",
    )  # fmt: skip

    def __init__(self, tag: bytes, name: str) -> None:
        self._tag = tag
        self._name = _field(_FIRST, _text(name))
        self._text_heads: dict[int, bytes] = {}
        self._integer_heads = [b""] * 11
        self._single_heads: dict[int, bytes] = {}
        self.integers: dict[int, bytes] = {}
        self.texts: dict[str, bytes] = {}
        self.singles: dict[str, bytes] = {}
        self.numbers = {value: self.wrap(_field(_VALUE_ARRAY, _INTEGER_ELEMENTS[value])) for value in range(16)}
        self.float_head = self.wrap(_VALUE_DOUBLE + bytes(8))[:-8]
        self.false, self.true = self.wrap(_VALUE_FALSE), self.wrap(_VALUE_TRUE)
        self.empty = self.wrap(_VALUE_ARRAY + b"\0")

    def wrap(self, value: bytes) -> bytes:
        """Return the attribute with an encoded `AnyValue`."""
        return _field(self._tag, self._name + _field(_SECOND, value))

    def text(self, text: str) -> bytes:
        """Return the attribute with a string."""
        encoded = _text(text)
        size = len(encoded)
        head = self._text_heads.get(size)
        if head is None:
            head = self.wrap(_field(_VALUE_STRING, bytes(size)))[: -size or None]
            if size <= _MAX_SIZE:
                self._text_heads[size] = head
        attribute = head + encoded
        if size < _MAX_TEXT:
            if len(self.texts) >= _MAX_VALUES:
                self.texts.clear()
            self.texts[text] = attribute
        return attribute

    def integer(self, value: int) -> bytes:
        """Return the attribute with an integer; b"" where OTLP cannot hold it."""
        if 0 <= value < _MAX_VARINT:
            varint = _VARINTS[value]
        elif 0 < value < _MAX_VARINT**2:
            varint = _LOW_VARINTS[value & _MAX_VARINT - 1] + _VARINTS[value >> 14]
        elif value in _INT64:
            varint = _varint(value & _MASK64)
        else:
            return b""
        size = len(varint)
        attribute = (self._integer_heads[size] or self._integer_head(size)) + varint
        # Larger numbers seldom come again.
        if 0 <= value < _MAX_INTEGER:
            self.integers[value] = attribute
        return attribute

    def _integer_head(self, size: int) -> bytes:
        head = self._integer_heads[size] = self.wrap(_VALUE_INT + bytes(size))[:-size]
        return head

    def single(self, text: str) -> bytes:
        """Return the attribute with an array of one string."""
        encoded = _text(text)
        size = len(encoded)
        head = self._single_heads.get(size)
        if head is None:
            element = _field(_FIRST, _field(_VALUE_STRING, bytes(size)))
            head = self.wrap(_field(_VALUE_ARRAY, element))[: -size or None]
            if size <= _MAX_SIZE:
                self._single_heads[size] = head
        attribute = head + encoded
        if size < _MAX_TEXT:
            if len(self.singles) >= _MAX_VALUES:
                self.singles.clear()
            self.singles[text] = attribute
        return attribute

    def array(self, values: Sequence[Any]) -> bytes:
        """Return the attribute with an array; b"" where OTLP cannot hold it."""
        if not values:
            return self.empty
        if len(values) == 1:
            value = values[0]
            if type(value) is str:
                return self.singles.get(value) or self.single(value)
            if type(value) is int and value in self.numbers:
                return self.numbers[value]
        array = _array(values)
        return b"" if array is None else self.wrap(_field(_VALUE_ARRAY, array))


class _Keys(dict[str, _Key]):
    """The keys of the attributes in one kind of message, made when they are first asked for."""

    def __init__(self, tag: bytes) -> None:
        self._tag = tag
        self.encoders: dict[tuple[Any, ...], Callable[..., bytes]] = {}

    def __missing__(self, name: str) -> _Key:
        # Names are ours, and few; but whoever feeds this without end must not fill the memory.
        if len(self) >= _MAX_KEYS:
            self.clear()
        key = self[name] = _Key(self._tag, name)
        return key


_SPAN_KEYS, _LINK_KEYS, _RESOURCE_KEYS = _Keys(_SPAN_ATTRIBUTE), _Keys(_LINK_ATTRIBUTE), _Keys(_FIRST)


def _attributes(keys: _Keys, attributes: Mapping[str, Any]) -> bytes:
    """Return what the attributes are as fields of a message."""
    values = attributes.values()
    shape = (*attributes, *map(type, values))
    encoder = keys.encoders.get(shape)
    if encoder is None:
        if len(keys.encoders) >= _MAX_SHAPES:
            keys.encoders.clear()
        encoder = keys.encoders[shape] = _compile([(keys[name], type(value)) for name, value in attributes.items()])
    return encoder(*values)


def _compile(shape: Sequence[tuple[_Key, type]]) -> Callable[..., bytes]:
    """Return a function that encodes the values of attributes of these names and types.

    Spans of a kind have the same attributes again and again: what depends on names and types is decided but once.
    """
    scope: dict[str, Any] = {"join": b"".join, "double": _pack_double}
    parts = []
    one: Any
    other: Any
    for number, (key, kind) in enumerate(shape):
        if kind is int:
            one, other, part = key.integers.get, key.integer, "a{0}(v{0}) or b{0}(v{0})"
        elif kind is str:
            one, other, part = key.texts.get, key.text, "a{0}(v{0}) or b{0}(v{0})"
        elif kind is bool:
            one, other, part = key.true, key.false, "a{0} if v{0} else b{0}"
        elif kind is float:
            one, other, part = key.float_head, None, "a{0}, double(v{0})"
        else:
            one, other, part = key.array, None, "a{0}(v{0})"
        scope |= {f"a{number}": one, f"b{number}": other}
        parts.append(part.format(number) + ", ")
    values = ", ".join(f"v{number}" for number in range(len(shape)))
    return eval(f"lambda {values}: join(({''.join(parts)}))", scope)  # type: ignore[no-any-return]


def _array(values: Iterable[Any]) -> bytes | None:
    """Return an `ArrayValue`; None where OTLP cannot hold one of its integers."""
    parts: list[bytes] = []
    for value in values:
        kind = type(value)
        if kind is str:
            text = _text(value)
            if len(text) < _SHORT:
                parts += (_TEXT_ELEMENTS[len(text)], text)
            else:
                parts.append(_field(_FIRST, _field(_VALUE_STRING, text)))
        elif kind is int:
            if 0 <= value < 128:
                parts.append(_INTEGER_ELEMENTS[value])
            elif value in _INT64:
                parts.append(_field(_FIRST, _VALUE_INT + _varint(value & _MASK64)))
            else:
                return None
        elif kind is bool:
            parts.append(_field(_FIRST, _VALUE_TRUE if value else _VALUE_FALSE))
        else:
            parts.append(_field(_FIRST, _VALUE_DOUBLE + _pack_double(value)))
    return b"".join(parts)


def _resource(resource: ReplicaResource) -> bytes:
    # The same for every request of a replica's life: written once.
    if resource.protobuf is None:
        resource.protobuf = _field(_FIRST, _attributes(_RESOURCE_KEYS, resource.attributes))
    return resource.protobuf


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    return _field(_SPAN_NAME, _text(name)) + _SPAN_KIND_INTERNAL


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(text: str) -> bytes:
    # Environment variables may hold bytes that are no text; protobuf strings may not.
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _length(size: int) -> bytes:
    return _BYTE[size] if size < 128 else _varint(size)


def _varint(value: int) -> bytes:
    if value < 1 << 7:
        return _BYTE[value]
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 1 << 28:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)


_VARINTS = [_varint(value) for value in range(_MAX_VARINT)]
_LOW_VARINTS = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_MAX_VARINT)]
"""The lower 14 bits of a number that has more."""
_TEXT_ELEMENTS = [_field(_FIRST, _field(_VALUE_STRING, bytes(size)))[: -size or None] for size in range(_SHORT)]
_INTEGER_ELEMENTS = [_field(_FIRST, _VALUE_INT + _varint(value)) for value in range(128)]
_SCOPE_HEAD = _field(_FIRST, _field(_FIRST, _text(SCOPE)) + _field(_SECOND, _text(VERSION)))
