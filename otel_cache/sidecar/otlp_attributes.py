"""Attributes as OTLP writes them: names and values as fields of a protobuf message, in bytes.

Most of an attribute is the same every time: its name, and the tags and lengths around name and value. All of that is
encoded once and kept. The field numbers are those of opentelemetry-proto's common/v1/common.proto.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

_MAX_KEYS = 1024
_MAX_SHAPES = 1024
"""Sets of attributes that are known at once, by their names and types."""
_MAX_VALUES = 256
"""Values of one attribute that are kept in their encoded form."""
_MAX_INTEGER = 256
_MAX_TEXT = 64
"""Longer strings than so many bytes are not kept."""
_MAX_ELEMENTS = 8
_MAX_ARRAY = 128
"""Arrays of more elements or bytes are not kept."""
_MAX_SIZE = 4096
"""Longer values than so many bytes have the bytes in front of them made anew."""
_SHORT = 120
_Value = TypeVar("_Value")
_MASK64 = (1 << 64) - 1
_INT64 = range(-(1 << 63), 1 << 63)
_BYTE = [bytes((value,)) for value in range(128)]

# Tags: field number << 3 | wire type, which is 0 for a varint, 1 for 8 bytes, 2 for a length and bytes, 5 for 4 bytes.
FIXED64, BYTES, FIXED32 = 1, 2, 5
FIRST, SECOND = bytes((1 << 3 | BYTES,)), bytes((2 << 3 | BYTES,))
_VALUE_STRING, _VALUE_ARRAY = bytes((1 << 3 | BYTES,)), bytes((5 << 3 | BYTES,))
_VALUE_FALSE, _VALUE_TRUE = bytes((2 << 3, 0)), bytes((2 << 3, 1))
_VALUE_INT, _VALUE_DOUBLE = bytes((3 << 3,)), bytes((4 << 3 | FIXED64,))
_pack_double = struct.Struct("<d").pack


class _Key:
    """One attribute name in one kind of message, and what an attribute of this name looks like around its value.

    An attribute is a field `tag` with a `KeyValue`: the name, and in field 2 an `AnyValue`. All but the value itself
    depends on the name and the value's size alone, and values of one name often come again.
    """

    __slots__ = (
        "_array_heads", "_integer_heads", "_name", "_single_heads", "_tag", "_text_heads", "arrays", "empty", "false",
        "float_head", "integers", "singles", "texts", "three", "true",
    )  # fmt: skip

    def __init__(self, tag: bytes, name: str) -> None:
        self._tag = tag
        self._name = field(FIRST, text(name))
        self._text_heads: dict[int, bytes] = {}
        self._single_heads: dict[int, bytes] = {}
        self._array_heads: dict[int, bytes] = {}
        self._integer_heads = [self._wrap(_VALUE_INT + bytes(size))[: -size or None] for size in range(11)]
        self.three = self._integer_heads[3]
        self.integers: dict[int, bytes] = {}
        self.texts: dict[str, bytes] = {}
        self.singles: dict[str, bytes] = {}
        self.arrays: dict[tuple[Any, ...], bytes] = {}
        self.float_head = self._wrap(_VALUE_DOUBLE + bytes(8))[:-8]
        self.false, self.true = self._wrap(_VALUE_FALSE), self._wrap(_VALUE_TRUE)
        self.empty = self._wrap(_VALUE_ARRAY + b"\0")

    def _wrap(self, value: bytes) -> bytes:
        """Return the attribute with an encoded `AnyValue`."""
        return field(self._tag, self._name + field(SECOND, value))

    def text(self, value: str) -> bytes:
        """Return the attribute with a string."""
        encoded = text(value)
        size = len(encoded)
        head = self._text_heads.get(size)
        if head is None:
            head = self._head(self._text_heads, size, field(_VALUE_STRING, bytes(size)))
        attribute = head + encoded
        if size < _MAX_TEXT:
            _keep(self.texts, value, attribute)
        return attribute

    def integer(self, value: int) -> bytes:
        """Return the attribute with an integer; b"" where OTLP cannot hold it."""
        if 0 <= value < MAX_VARINT:
            attribute = self._integer_heads[1 if value < 1 << 7 else 2] + VARINTS[value]
            # Larger numbers seldom come again.
            if value < _MAX_INTEGER:
                self.integers[value] = attribute
            return attribute
        if 0 < value < _MAX_TWO:
            head = self._integer_heads[3 if value < 1 << 21 else 4]
            return head + _LOW_VARINTS[value & _LOW_BITS] + VARINTS[value >> 14]
        if value not in _INT64:
            return b""
        varint = varint_of(value & _MASK64)
        return self._integer_heads[len(varint)] + varint

    def single(self, value: str) -> bytes:
        """Return the attribute with an array of one string."""
        encoded = text(value)
        size = len(encoded)
        head = self._single_heads.get(size)
        if head is None:
            element = field(FIRST, field(_VALUE_STRING, bytes(size)))
            head = self._head(self._single_heads, size, field(_VALUE_ARRAY, element))
        attribute = head + encoded
        if size < _MAX_TEXT:
            _keep(self.singles, value, attribute)
        return attribute

    def array(self, values: Sequence[Any]) -> bytes:
        """Return the attribute with an array; b"" where OTLP cannot hold it."""
        if not values:
            return self.empty
        kind = type(values[0])
        if kind is str and len(values) == 1:
            return self.singles.get(values[0]) or self.single(values[0])
        # Of one type all of them: numbers that are equal are the same.
        again = tuple(values) if len(values) <= _MAX_ELEMENTS and (kind is str or kind is int) else ()
        if (attribute := self.arrays.get(again)) is not None:
            return attribute
        array = _array(values)
        if array is None:
            return b""
        size = len(array)
        head = self._array_heads.get(size)
        if head is None:
            head = self._head(self._array_heads, size, field(_VALUE_ARRAY, bytes(size)))
        attribute = head + array
        if again and size < _MAX_ARRAY:
            _keep(self.arrays, again, attribute)
        return attribute

    def _head(self, heads: dict[int, bytes], size: int, value: bytes) -> bytes:
        """Return what stands before the last `size` bytes of an `AnyValue`."""
        head = self._wrap(value)[: -size or None]
        if size <= _MAX_SIZE:
            heads[size] = head
        return head


class Attributes:
    """The attributes of one kind of message, where they are the field `tag`.

    Attributes:
        encoders: what encodes the attributes of each shape that is known.

    """

    def __init__(self, tag: bytes, before: int = 0, after: int = 0) -> None:
        """Begin without knowing any; so many parts of a message, in bytes, stand before and after its attributes."""
        self.encoders: dict[object, Callable[..., bytes]] = {}
        self._tag = tag
        self._before, self._after = before, after
        self._keys: dict[str, _Key] = {}

    def encode(self, attributes: Mapping[str, Any]) -> bytes:
        """Return what the attributes are as fields of a message of which they are all."""
        return self.encoder(attributes)(attributes.values())

    def encoder(self, attributes: Mapping[str, Any], shape: object = None) -> Callable[..., bytes]:
        """Return what encodes messages with these attributes, and with all of their shape; see `SpanData`.

        It takes the parts before the attributes, those after them, and the attributes' values.
        """
        known = shape or (*attributes, *map(type, attributes.values()))
        encoder = self.encoders.get(known)
        if encoder is None:
            if len(self.encoders) >= _MAX_SHAPES:
                self.encoders.clear()
            keys = [(self._key(name), type(value)) for name, value in attributes.items()]
            encoder = self.encoders[known] = _compile(keys, self._before, self._after)
        return encoder

    def _key(self, name: str) -> _Key:
        key = self._keys.get(name)
        if key is None:
            # Names are ours, and few; but whoever feeds this without end must not fill the memory.
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            key = self._keys[name] = _Key(self._tag, name)
        return key


def _compile(shape: Sequence[tuple[_Key, type]], before: int, after: int) -> Callable[..., bytes]:
    """Return a function that encodes a message: of what stands before its attributes, and after them, and their values.

    Spans of a kind have the same attributes again and again: what depends on names and types is decided but once.
    """
    scope: dict[str, Any] = {"join": b"".join, "low": _LOW_VARINTS, "varints": VARINTS}
    parts: list[str] = []
    # Doubles in a row, whose size is known, are packed in one go with the names between them.
    for floats, row in groupby(enumerate(shape), lambda each: each[1][1] is float):
        if floats:
            members = list(row)
            begin = members[0][0]
            heads = {f"a{number}": key.float_head for number, (key, _) in members}
            scope |= heads | {
                f"b{begin}": struct.Struct("<" + "".join(f"{len(head)}sd" for head in heads.values())).pack
            }
            parts.append(f"b{begin}({', '.join(f'a{number}, v{number}' for number, _ in members)}), ")
            continue
        for number, (key, kind) in row:
            one, other, part = _ways(key, kind)
            scope |= {f"a{number}": one, f"b{number}": other, f"c{number}": key.three}
            parts.append(part.format(number) + ", ")
    first, last, values = (
        "".join(f"{letter}{number}, " for number in range(count))
        for letter, count in (("p", before), ("q", after), ("v", len(shape)))
    )
    body = f"    [{values}] = values\n    return join(({first}{''.join(parts)}{last}))"
    exec(f"def encode({first}{last}values):\n{body}", scope)
    return scope["encode"]  # type: ignore[no-any-return]


def _ways(key: _Key, kind: type) -> tuple[Any, Any, str]:
    """Return two things that an attribute of this type is made with, and how."""
    if kind is int:
        # Numbers that count something go on to be of three bytes for long.
        three = "c{0} + low[v{0} & 16383] + varints[v{0} >> 14] if 16384 <= v{0} < 2097152"
        return key.integers.get, key.integer, f"a{{0}}(v{{0}}) or ({three} else b{{0}}(v{{0}}))"
    if kind is str:
        return key.texts.get, key.text, "a{0}(v{0}) or b{0}(v{0})"
    if kind is bool:
        return key.true, key.false, "a{0} if v{0} else b{0}"
    return key.array, None, "a{0}(v{0})"


def _keep(known: dict[_Value, bytes], value: _Value, attribute: bytes) -> None:
    if len(known) >= _MAX_VALUES:
        known.clear()
    known[value] = attribute


def _array(values: Iterable[Any]) -> bytes | None:
    """Return an `ArrayValue`; None where OTLP cannot hold one of its integers."""
    parts: list[bytes] = []
    for value in values:
        kind = type(value)
        if kind is str:
            encoded = text(value)
            if len(encoded) < _SHORT:
                parts += (_TEXT_ELEMENTS[len(encoded)], encoded)
            else:
                parts.append(field(FIRST, field(_VALUE_STRING, encoded)))
        elif kind is int:
            if 0 <= value < MAX_VARINT:
                parts.append(_INTEGER_ELEMENTS[value] if value < 128 else _INTEGER_2 + VARINTS[value])
            elif value in _INT64:
                parts.append(field(FIRST, _VALUE_INT + varint_of(value & _MASK64)))
            else:
                return None
        elif kind is bool:
            parts.append(field(FIRST, _VALUE_TRUE if value else _VALUE_FALSE))
        else:
            parts.append(field(FIRST, _VALUE_DOUBLE + _pack_double(value)))
    return b"".join(parts)


def field(tag: bytes, body: bytes) -> bytes:
    """Return a field of a length and bytes."""
    return tag + varint_of(len(body)) + body


def text(value: str) -> bytes:
    """Return a string as protobuf has it."""
    # Environment variables may hold bytes that are no text; protobuf strings may not.
    try:
        return value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


def varint_of(value: int) -> bytes:
    """Return a number that is not negative, 7 bits in a byte, the lowest first."""
    if value < 1 << 7:
        return _BYTE[value]
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80)) + varint_of(value >> 14)


MAX_VARINT = 1 << 14
"""Numbers below have at most 2 bytes of 7 bits."""
_MAX_TWO, _LOW_BITS = MAX_VARINT**2, MAX_VARINT - 1
VARINTS = [varint_of(value) for value in range(MAX_VARINT)]
_LOW_VARINTS = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(MAX_VARINT)]
"""The lower 14 bits of a number that has more."""
_TEXT_ELEMENTS = [field(FIRST, field(_VALUE_STRING, bytes(size)))[: -size or None] for size in range(_SHORT)]
_INTEGER_ELEMENTS = [field(FIRST, _VALUE_INT + varint_of(value)) for value in range(128)]
_INTEGER_2 = field(FIRST, _VALUE_INT + bytes(2))[:-2]
