"""Attributes of OTLP's Protobuf as plain values."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def flatten(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes by name, without those that have no value or a map."""
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
