"""Arrays that a storage of scalars keeps as strings of their JSON, made arrays again."""

import contextlib
from typing import Any

import msgspec

from otel_cache.semconv.arrays import ARRAYS

Json = dict[str, Any]


def value_of(key: object, text: str) -> Json:
    """Return the OTLP JSON value of the attribute `key` that is written as `text`.

    It is an array where the registry says that the attribute is one and the text is a JSON array; else the string.
    """
    if key in ARRAYS:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {"arrayValue": {"values": [_element(each) for each in msgspec.json.decode(text, type=list)]}}
    return {"stringValue": text}


def with_arrays(attributes: object) -> object:
    """Return attributes as OTLP JSON writes them, `[{"key": ..., "value": ...}, ...]`, with what is an array as one."""
    if not isinstance(attributes, list):
        return attributes
    return [
        {**each, "value": value_of(each.get("key"), text)} if (text := _text(each)) is not None else each
        for each in attributes
    ]


def _text(attribute: object) -> str | None:
    """Return the string of an attribute that should be an array; None for all others."""
    if not isinstance(attribute, dict) or attribute.get("key") not in ARRAYS:
        return None
    value = attribute.get("value")
    text = value.get("stringValue") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def _element(value: object) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
    return {}
