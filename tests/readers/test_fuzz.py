"""Hostile input in every form: an error in one sentence, or a counted skip; never a traceback, never a made-up span.

`OTEL_CACHE_FUZZ_SECONDS` is how long inputs are tried at random, 3 seconds without it.
"""

import gzip
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzers.model import Capture
from analyzers.readers import content, convert, framing, open_capture
from otel_cache.errors import CaptureError
from tests.readers import otlp
from tests.readers.forms import FORMS, JAEGER, prefixed, protobuf, zstd
from tests.readers.test_capture import LINES, assert_same, read

SECONDS = float(os.environ.get("OTEL_CACHE_FUZZ_SECONDS", "3"))
ALL = {**FORMS, **JAEGER}


Damage = Callable[[bytes, random.Random], tuple[bytes, int]]
"""Returns the damaged bytes and in how many places they differ: each can make one span's copy a span of its own."""


def cut(data: bytes, chance: random.Random) -> tuple[bytes, int]:
    return data[: chance.randrange(len(data))], 1


def junk(data: bytes, chance: random.Random) -> tuple[bytes, int]:
    at, length = chance.randrange(len(data)), chance.randint(1, 40)
    return data[:at] + chance.randbytes(length) + data[at + chance.choice((0, length)) :], 1


def flips(data: bytes, chance: random.Random) -> tuple[bytes, int]:
    changed, places = bytearray(data), chance.randint(1, 8)
    for _ in range(places):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed), places


def moved(data: bytes, chance: random.Random) -> tuple[bytes, int]:
    """Put a part in front of the whole: of its spans there are two copies."""
    one, other = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[one:other] + data[:one] + data[one:], 2


DAMAGE: tuple[Damage, ...] = (cut, junk, flips, moved)


def test_damage_of_any_kind_in_any_form_is_told_or_harmless(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    forms = {form: write(LINES)(tmp_path / "good").read_bytes() for form, write in ALL.items()}
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    path = tmp_path / "spans"
    tried = 0
    while tried < 20 or time.monotonic() < end:
        form = chance.choice(list(forms))
        data, places = forms[form], 0
        for _ in range(chance.randint(1, 2)):
            data, changed = chance.choice(DAMAGE)(data or b"\0", chance)
            places += changed
        path.write_bytes(data)
        tried += 1
        try:
            capture = open_capture(path)
        except CaptureError as error:
            assert str(error).startswith(str(path)), (seed, form)
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, try {tried}, {form}") from error
        # No span comes of nothing: two copies are two spans only where damage made their ids differ.
        assert 0 < capture.spans <= len(LINES) + places, (seed, tried, form)


def test_a_zstd_or_gzip_bomb_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "UNSUSPECTED_BYTES", 1 << 20)
    # gzip packs zeros to a thousandth at best.
    monkeypatch.setattr(content, "MAX_RATIO", 500)
    for number, compress in enumerate((zstd.compress, gzip.compress)):
        path = tmp_path / str(number)
        path.write_bytes(compress(LINES[0]) + compress(b" " * (64 << 20)))
        capture = open_capture(path)
        assert (capture.spans, capture.skipped_lines) == (1, 1)
        assert "expands to more than" in capture.notes[-1]


def test_a_bomb_in_a_message_costs_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "UNSUSPECTED_BYTES", 1 << 20)
    bomb = zstd.compress(b"\n" * (64 << 20))
    frames = [zstd.compress(protobuf(line)) for line in LINES]
    capture = read(tmp_path, prefixed([*frames[:3], bomb, *frames[3:]]))
    assert (capture.spans, capture.skipped_lines) == (len(LINES), 1)
    assert "message 4" in capture.notes[0]


def test_a_window_too_large_is_refused(tmp_path: Path) -> None:
    options = {int(zstd.CompressionParameter.window_log): content.WINDOW_LOG + 1}
    compressor = zstd.ZstdCompressor(options=options)
    path = tmp_path / "spans"
    path.write_bytes(compressor.compress(b"".join(LINES), compressor.CONTINUE) + compressor.flush())
    with pytest.raises(CaptureError, match="damaged at its beginning"):
        open_capture(path)


def test_an_endless_line_is_passed_over_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_RECORD_BYTES", 1 << 16)
    long = b'{"resourceSpans":[{"x":"' + b"y" * (1 << 20) + b'"}]}\n'
    capture = read(tmp_path, b"".join([*LINES[:4], long, *LINES[4:]]))
    assert (capture.spans, capture.skipped_lines) == (len(LINES), 1)
    assert "line 5: longer than" in capture.notes[0]


def test_names_in_a_capture_are_no_paths(tmp_path: Path) -> None:
    names = ("../../etc/passwd", "/etc/passwd", "..\\x", "a\0b", "<script>alert(1)</script>", "\x1b[2J", "x" * 5000)
    spans = [otlp.lookup(at, at, REQUEST_ID=name) for at, name in enumerate(names, 1)]
    owner = otlp.resource("../r0", "../../life")
    (tmp_path / "in").mkdir()
    capture = read(tmp_path / "in", otlp.line(owner, spans))
    assert capture.lookups["request_id"].to_list() == list(names)
    convert([tmp_path / "in"], str(tmp_path / "typed"))
    assert_same(open_capture(tmp_path / "typed"), capture)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "typed"]


def test_order_and_repetition_change_nothing(tmp_path: Path) -> None:
    whole: Capture = read(tmp_path, b"".join(LINES))
    chance = random.Random(5)
    for form in ("lines", "protobuf", "JSON messages in frames"):
        lines = [*LINES, *LINES[2:6]]
        chance.shuffle(lines)
        (tmp_path / form).mkdir()
        assert_same(open_capture(FORMS[form](lines)(tmp_path / form)), whole)
