"""The search itself: whatever form a marker takes, it is found, and noise is not."""

import base64
import json
import os
import random
import struct

import msgspec
import pytest

from privacy.markers import ENCODINGS, Markers

TOKENS = [1_234_567_891, 2_001_002_003, 1_900_800_701, 777_888_999]
MARKERS = Markers([TOKENS], ["tr0ub4dor"])

FORMS: dict[str, bytes] = {
    "list in a log line": str(TOKENS).encode(),
    "JSON": json.dumps({"tokens": TOKENS}).encode(),
    "MessagePack": msgspec.msgpack.encode(TOKENS),
    "int64, little-endian": struct.pack("<4q", *TOKENS),
    "int64, big-endian": struct.pack(">4q", *TOKENS),
    "base64 of int32": base64.b64encode(struct.pack("<4i", *TOKENS)),
    "base64 of int32, not at its start": base64.b64encode(b"x" + struct.pack("<4i", *TOKENS)),
    "base64 for URLs": base64.urlsafe_b64encode(b"??>" + struct.pack(">4q", *TOKENS)),
    "hexadecimal of int32": b"ab" + struct.pack("<4i", *TOKENS).hex().encode(),
    "protobuf's packed varints": b"\x0a\x14" + b"".join(ENCODINGS["varint"](token) for token in TOKENS),
    "protobuf's single varints": b"".join(b"\x18" + ENCODINGS["varint"](token) for token in TOKENS),
    "text": b"salt=tr0ub4dor",
    "text in base64": base64.b64encode(b"salt=tr0ub4dor"),
    "text in hexadecimal": b"salt=tr0ub4dor".hex().encode(),
    "text in UTF-16": "tr0ub4dor".encode("utf-16-le"),
    **{f"runs of {name}": b",".join(map(encode, TOKENS)) for name, encode in ENCODINGS.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_found(form: str) -> None:
    """In the midst of noise."""
    noise = os.urandom(5000) + b'{"some": "text", "number": 1234567890}'
    assert MARKERS.found_in(noise + b" " + FORMS[form] + b" " + noise)


def test_noise_is_not() -> None:
    """Half a megabyte of bytes, of decimal digits, of base64 and of hexadecimal digits."""
    generator = random.Random(1)
    noise = generator.randbytes(500_000)
    digits = "".join(str(generator.randrange(10**18, 10**19)) + "," for _ in range(20_000)).encode()
    for data in (noise, digits, base64.b64encode(noise), noise.hex().encode()):
        assert MARKERS.found_in(data) == []


def test_one_token_is_not_enough() -> None:
    """Four bytes come about by chance, so a token counts beside its neighbour only."""
    assert MARKERS.found_in(struct.pack("<i", TOKENS[0]) + b"." * 40 + struct.pack("<i", TOKENS[1])) == []
