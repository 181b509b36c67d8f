"""Streams to records: lines of JSON, and messages that stand after their length.

The collector's file exporter writes Protobuf, and whatever it compresses message by message, as messages: 4 bytes of
length, the highest first, then the message, which may be a zstd frame of its own.
"""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from analyzers.readers.content import (
    BOM,
    LENGTH_BYTES,
    MAX_RECORD_BYTES,
    TRUNCATED,
    ZSTD_MAGIC,
    Bomb,
    Content,
    inflate,
    is_message,
)
from analyzers.readers.tally import NOT_JSON, NOT_OTLP, Tally
from otel_cache.errors import CaptureError

SEARCH_BYTES = 16 << 20
"""After damage so many bytes are looked through for the next message at a time."""
_HEAD = re.compile(rb"(?=[\x00-\x08][\s\S]{3}(?:\n|\{|\x28\xb5\x2f\xfd))")


class Record(NamedTuple):
    """One line or message, without its length, and its number in the input, from 1."""

    data: bytes
    number: int


def records(content: Content, label: str, tally: Tally) -> Iterator[Record]:
    """Yield the lines or messages of `content`, blank ones left out; count what is cut off, damaged or too long.

    Raises:
        CaptureError: the device fails while reading.

    """
    read = {"lines": _lines, "document": _document, "messages": _messages}[content.form]
    what = "message" if content.form == "messages" else "line"
    number = 0
    try:
        for number, data in read(content.stream, label, tally):
            yield Record(data, number)
    except TRUNCATED as error:
        # The tail of a compressed file that was still being written.
        tally.skip(NOT_JSON, f"{label} after {what} {number}", f"cut off ({error})")
    except OSError as error:
        raise CaptureError(f"{label}: cannot be read ({error.strerror or error})") from error


def _lines(stream: io.BufferedReader, label: str, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers, from 1, and the bytes of the lines that are not blank."""
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES):
        number += 1
        if len(line) == MAX_RECORD_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_RECORD_BYTES)) and not rest.endswith(b"\n"):
                pass
            tally.skip(NOT_JSON, f"{label} line {number}", f"longer than {MAX_RECORD_BYTES >> 20} MiB, passed over")
            continue
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.isspace():
            yield number, line


def _document(stream: io.BufferedReader, label: str, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield a document that goes over the lines, whole."""
    document = stream.read(MAX_RECORD_BYTES + 1)
    if len(document) > MAX_RECORD_BYTES:
        raise CaptureError(
            f"{label}: one JSON document of more than {MAX_RECORD_BYTES >> 20} MiB, which is read at once; "
            "ask for fewer traces at a time, or write OTLP JSON lines"
        )
    try:
        msgspec.json.decode(document.removeprefix(BOM), type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        # It only looked like one: lines, the first of which is cut off.
        yield from _lines(io.BufferedReader(io.BytesIO(document)), label, tally)
    else:
        yield 1, document.removeprefix(BOM)


def _messages(stream: io.BufferedReader, label: str, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers, from 1, and the bytes of the messages; after damage it goes on with the next whole one."""
    source = _Pushed(stream)
    number = 0
    while head := source.read(LENGTH_BYTES):
        number += 1
        where = f"{label} message {number}"
        length = int.from_bytes(head)
        body = source.read(length) if length <= MAX_RECORD_BYTES else source.read(LENGTH_BYTES)
        if len(body) < length or not is_message(head + body[:LENGTH_BYTES]):
            # Cut off; or the length is damaged, and whole messages stand behind it.
            found = source.find_message(head + body)
            tally.skip(
                NOT_OTLP, where, "damaged, passed over up to the next message" if found else "cut off or damaged"
            )
        else:
            if body.startswith(ZSTD_MAGIC):
                body = _unpacked(body, where, tally)
            if body:
                yield number, body


class _Pushed:
    """A stream to which bytes can be given back."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._ahead = io.BytesIO()

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or what there is."""
        data = self._ahead.read(size)
        return data if len(data) == size else data + self._stream.read(size - len(data))

    def find_message(self, passed: bytes) -> bool:
        """Go to the next whole message that begins behind the first byte of `passed`; False where there is none."""
        window = passed[1:]
        while True:
            more = self._ahead.read()
            read = self._stream.read(SEARCH_BYTES)
            window = b"".join((window, more, read))
            last = len(read) < SEARCH_BYTES
            at = _first_message(window, last)
            if at is not None:
                self._ahead = io.BytesIO(window[at:])
                return True
            if last:
                self._ahead = io.BytesIO()
                return False
            window = window[-LENGTH_BYTES - len(ZSTD_MAGIC) :]


def _first_message(window: bytes, last: bool) -> int | None:
    """Return where a message begins behind which another one begins, or the input ends."""
    for match in _HEAD.finditer(window):
        at = match.start()
        end = at + LENGTH_BYTES + int.from_bytes(window[at : at + LENGTH_BYTES])
        if (end == len(window) and last) or is_message(window[end : end + 2 * LENGTH_BYTES]):
            return at
        # It reaches beyond what is seen: then at least the first message in it has to fit.
        if end > len(window) and not last and _fits(window[at + LENGTH_BYTES : at + LENGTH_BYTES + 6], end - at):
            return at
    return None


def _fits(body: bytes, size: int) -> bool:
    """Whether the first field of a message of OTLP's fills most of it."""
    length = 0
    for index, byte in enumerate(body[1:]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    return body.startswith(b"\x0a") and size // 2 < length < size


def _unpacked(frame: bytes, where: str, tally: Tally) -> bytes:
    """Return what a message's own zstd frame holds; nothing where it is damaged or too long."""
    try:
        data = inflate(io.BufferedReader(io.BytesIO(frame))).read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            raise Bomb(f"longer than {MAX_RECORD_BYTES >> 20} MiB")
    except TRUNCATED as error:
        tally.skip(NOT_OTLP, where, f"its compressed form is damaged ({error})")
        return b""
    return data
