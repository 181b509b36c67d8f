"""Typed access to a span's attributes. What is absent, of another type or impossible raises `SpanError`."""

import binascii
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from analyzers.readers.tally import SpanError
from otel_cache.errors import RecordError
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.positions import parse_positions

Attributes = Mapping[str, Any]

MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1
MAX_POSITIONS = 1 << 24
"""More positions than a request has blocks: a run that is longer is damage, and would fill the memory."""


def integer(attributes: Attributes, key: str) -> int:
    """Return the number of tokens, blocks or records at `key`: 0 or more, at most 2**63 - 1."""
    value = optional_integer(attributes, key)
    if value is None:
        raise SpanError(f"{key} is missing")
    return value


def optional_integer(attributes: Attributes, key: str) -> int | None:
    """Return the number at `key`, or None where it is absent."""
    value = attributes.get(key)
    if value is None:
        return None
    # bool is an int to Python, not to OpenTelemetry.
    if type(value) is not int:
        raise SpanError(f"{key} is {_shown(value)}, not an integer")
    if not 0 <= value <= MAX_I64:
        raise SpanError(f"{key} is {_shown(value)}, out of range")
    return value


def integer_or(attributes: Attributes, key: str, default: int) -> int:
    """Return the number at `key`, or `default` where it is absent."""
    value = optional_integer(attributes, key)
    return default if value is None else value


def integers(attributes: Attributes, key: str, largest: int = MAX_I64) -> list[int]:
    """Return the numbers at `key`; none where it is absent."""
    values = attributes.get(key)
    if values is None:
        return []
    if not isinstance(values, list):
        raise SpanError(f"{key} is {_shown(values)}, not a list of integers")
    for value in values:
        if type(value) is not int or not 0 <= value <= largest:
            raise SpanError(f"{key} holds {_shown(value)}, not an integer from 0 to {largest}")
    return values


def optional_seconds(attributes: Attributes, key: str) -> float | None:
    """Return the duration at `key`, or None where it is absent."""
    value = attributes.get(key)
    if value is None:
        return None
    if type(value) is not float and type(value) is not int:
        raise SpanError(f"{key} is {_shown(value)}, not a number")
    if not 0 <= value < float("inf"):
        raise SpanError(f"{key} is {_shown(value)}, no duration")
    return float(value)


def text(attributes: Attributes, key: str) -> str:
    """Return the string at `key`."""
    value = attributes.get(key)
    if value is None:
        raise SpanError(f"{key} is missing")
    if not isinstance(value, str):
        raise SpanError(f"{key} is {_shown(value)}, not a string")
    return value


def text_or(attributes: Attributes, key: str, default: str) -> str:
    """Return the string at `key`, or `default` where it is absent."""
    return default if attributes.get(key) is None else text(attributes, key)


def texts(attributes: Attributes, key: str) -> list[str]:
    """Return the strings at `key`; none where it is absent."""
    values = attributes.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SpanError(f"{key} is {_shown(values)}, not a list of strings")
    return values


def parallel_texts(attributes: Attributes, key: str, count: int) -> list[str]:
    """Return `count` strings, one per group; empty ones where the attribute is absent."""
    values = texts(attributes, key)
    if not values:
        return [""] * count
    if len(values) != count:
        raise SpanError(f"{key} has {len(values)} entries for {count} groups")
    return values


def flag(attributes: Attributes, key: str) -> bool:
    """Return the boolean at `key`; False where it is absent."""
    value = attributes.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise SpanError(f"{key} is {_shown(value)}, not a boolean")
    return value


def decode(encoded: str, key: str) -> bytes:
    """Return the bytes that `encoded` stands for in base64."""
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise SpanError(f"{key} is not base64 ({error})") from error


def binary(attributes: Attributes, key: str) -> bytes:
    """Return the bytes at `key`; none where it is absent."""
    return decode(text_or(attributes, key, ""), key)


def fingerprints(attributes: Attributes, key: str) -> bytes:
    """Return the fingerprints at `key`, one or several strings, 8 bytes each; none where it is absent."""
    value = attributes.get(key)
    if value is None:
        return b""
    parts = [value] if isinstance(value, str) else texts(attributes, key)
    return b"".join(whole_fingerprints(part, key) for part in parts)


def whole_fingerprints(encoded: str, key: str) -> bytes:
    """Return the fingerprints in `encoded`, 8 bytes each."""
    values = decode(encoded, key)
    if len(values) % FINGERPRINT_BYTES:
        raise SpanError(f"{key} has {len(values)} bytes, no whole number of fingerprints of {FINGERPRINT_BYTES}")
    return values


@lru_cache(maxsize=65536)
def count_positions(written: str) -> int:
    """Return how many positions `written` names."""
    try:
        count = 0
        for run in parse_positions(written):
            if run[-1] > MAX_I64:
                raise SpanError(f"position {_shown(run[-1])} is out of range")
            count += len(run)
            if count > MAX_POSITIONS:
                raise SpanError(f"{_shown(written)} names more than {MAX_POSITIONS} positions")
    except (RecordError, OverflowError) as error:
        raise SpanError(shorten(str(error))) from error
    return count


def positions(attributes: Attributes, key: str, count: int) -> list[str]:
    """Return `count` strings of positions, one per group, as they are written; each is checked."""
    values = parallel_texts(attributes, key, count)
    for value in values:
        if value:
            try:
                count_positions(value)
            except SpanError as error:
                raise SpanError(f"{key}: {error}") from error
    return values


def shorten(sentence: str) -> str:
    """Cut a sentence that quotes damaged input to a length that can be printed."""
    return sentence if len(sentence) <= 160 else sentence[:157] + "..."


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:
        shown = "a number of thousands of digits"
    return shown if len(shown) <= 60 else shown[:57] + "..."
