"""Bytes as they stand in attributes."""

from binascii import b2a_base64

from otel_cache.records import FINGERPRINT_BYTES

MAX_FINGERPRINTS = 192
"""Fingerprints in one string: 192 make 2,048 characters, the longest attribute that every back end keeps whole."""


def encode_bytes(data: bytes) -> str:
    """Return `data` in base64."""
    return b2a_base64(data, newline=False).decode("ascii")


def encode_fingerprints(data: bytes) -> list[str]:
    """Return concatenated fingerprints as base64 strings of at most `MAX_FINGERPRINTS` each."""
    size = MAX_FINGERPRINTS * FINGERPRINT_BYTES
    if len(data) <= size:
        return [encode_bytes(data)] if data else []
    return [encode_bytes(data[start : start + size]) for start in range(0, len(data), size)]
