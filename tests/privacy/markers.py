"""What must never leave vLLM's process, and a search that would find it in any plausible encoding."""

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

GAP = 8
"""Bytes that may lie between two neighbouring tokens: separators, tags."""
SMALLEST = 1 << 28
"""Smaller tokens are not searched for: they might be found by chance."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{10,}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){5,}")


def _varint(token: int) -> bytes:
    parts = []
    while token > 0x7F:
        parts.append(token & 0x7F | 0x80)
        token >>= 7
    return bytes([*parts, token])


ENCODINGS: dict[str, Callable[[int], bytes]] = {
    "decimal": lambda token: str(token).encode(),
    "hexadecimal": lambda token: f"{token:x}".encode(),
    "upper-case hexadecimal": lambda token: f"{token:X}".encode(),
    "int32, little-endian": lambda token: struct.pack("<i", token),
    "int32, big-endian (MessagePack's too)": lambda token: struct.pack(">i", token),
    "varint": _varint,
    "zigzag varint": lambda token: _varint(token << 1),
}
"""64-bit forms hold the 32-bit ones, with four more bytes between neighbours; floats are none of a token's forms."""


@dataclass(frozen=True)
class Markers:
    """What is planted: runs of neighbouring tokens, and texts."""

    tokens: Sequence[Sequence[int]]
    texts: Sequence[str]

    def found_in(self, data: bytes) -> list[str]:
        """Return what of the markers is in `data`, and how it is encoded there; empty: nothing is."""
        found = []
        for form, part in _forms(data):
            found += [f"{text!r} ({form})" for text in self.texts if text.encode() in part]
            for name, encode in ENCODINGS.items():
                found += [f"{pair} as {name} ({form})" for pair in _pairs(self.tokens, encode, part)]
        return found


def _forms(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield `data` as it is, and what its runs of base64 and hexadecimal digits stand for, at every alignment."""
    yield "as it is", data
    yield "in UTF-16", data.replace(b"\0", b"")
    for shift in range(4):
        decoded = [_base64(match.group()[shift:]) for match in _BASE64.finditer(data)]
        yield f"in base64, from digit {shift}", b"\n".join(decoded)
    for shift in range(2):
        runs = (match.group()[shift:] for match in _HEX.finditer(data))
        yield (
            f"in hexadecimal, from digit {shift}",
            b"\n".join(binascii.unhexlify(run[: len(run) // 2 * 2]) for run in runs),
        )


def _base64(run: bytes) -> bytes:
    digits = run.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    if len(digits) % 4 == 1:
        digits = digits[:-1]
    return base64.b64decode(digits + b"=" * (-len(digits) % 4))


def _pairs(runs: Sequence[Sequence[int]], encode: Callable[[int], bytes], data: bytes) -> Iterator[tuple[int, int]]:
    """Yield neighbouring tokens of which the second stands at most GAP bytes behind the first, or the other way round.

    One alone is four bytes that chance brings about once in a while; two are not.
    """
    for run in runs:
        codes = [encode(token) for token in run]
        for index, code in enumerate(codes[:-1]):
            if run[index] < SMALLEST or run[index + 1] < SMALLEST:
                continue
            at = data.find(code)
            while at >= 0:
                near = data[max(at - GAP - len(codes[index + 1]), 0) : at + len(code) + GAP + len(codes[index + 1])]
                if codes[index + 1] in near:
                    yield run[index], run[index + 1]
                    break
                at = data.find(code, at + 1)
