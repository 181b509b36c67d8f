"""Attributes as OTLP JSON writes them, decoded and made plain."""

from typing import Any

import msgspec

from analyzers.readers.attributes import shorten
from analyzers.readers.tally import SpanError

ABSENT = msgspec.Raw()

# What msgspec raises on damaged input: text that is no UTF-8, and nesting beyond the interpreter's depth, included.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Camel(msgspec.Struct, gc=False, rename="camel"):
    """Fields are named as in OTLP JSON, where every field may be absent or null."""


class Array(Camel):
    values: "list[Value] | None" = None


class Value(Camel):
    string_value: str | None = None
    int_value: int | str | None = None
    bool_value: bool | None = None
    double_value: float | str | None = None
    bytes_value: str | None = None
    array_value: Array | None = None
    kvlist_value: msgspec.Raw = ABSENT


class Attribute(Camel):
    key: str = ""
    value: Value | None = None


def flatten(attributes: list[Attribute] | None) -> dict[str, Any]:
    """Return attributes as a dictionary of strings, numbers, booleans and lists of them.

    Raises:
        SpanError: one is not a number that says it is one.

    """
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


def _plain(value: Value) -> Any:
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
