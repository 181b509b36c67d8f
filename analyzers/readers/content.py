"""What an input holds, told by its first bytes and not by its name, and its bytes without their compression."""

import io
import select
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

import msgspec

from analyzers.readers.own_reports import no_capture, report_of
from otel_cache.errors import CaptureError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"
HEAD_BYTES = 64 << 10
BUFFER_BYTES = 1 << 20
LENGTH_BYTES = 4
MAX_RECORD_BYTES = 128 << 20
"""A longer line or message is not held in memory but passed over: exporters batch far less."""
MAX_LAYERS = 3
"""Compressed files in compressed files: as many as somebody makes by mistake."""
WINDOW_LOG = 27
"""Of zstd: 128 MiB, what its command line takes without being asked for more."""
MAX_RATIO = 1000
"""No capture is a thousandth of its size when compressed; what would be is made to fill a disk or a memory."""
UNSUSPECTED_BYTES = 64 << 20
"""So much is let out whatever the ratio."""
HEED_MILLISECONDS = 200
"""How long a signal may wait until reading heeds it."""

Form = Literal["lines", "document", "messages", "parquet"]
TRUNCATED = (EOFError, zlib.error, BadGzipFile, zstd.ZstdError)
"""What reading a compressed file raises that was cut off or damaged."""


class Bomb(EOFError):
    """A compressed file that would never end."""


class _Heeding(io.RawIOBase):
    """A file, pipe or terminal whose reader heeds a signal also where it came just before the read that then waits."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._poll = select.poll()
        self._poll.register(raw, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int | None:  # type: ignore[override]
        while not self._poll.poll(HEED_MILLISECONDS):
            pass
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class _Counted:
    """A stream that counts the bytes taken from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.count = 0
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.count += len(data)
        return data


class _Inflated(io.RawIOBase):
    """Decompressed bytes, as long as they are not suspiciously many."""

    def __init__(self, compressed: _Counted, inflated: _Readable) -> None:
        self._compressed = compressed
        self._inflated = inflated
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        # What there is before the damage comes before what it raises.
        data = self._inflated.read1(len(buffer))
        self._count += len(data)
        if self._count > max(UNSUSPECTED_BYTES, MAX_RATIO * self._compressed.count):
            raise Bomb(f"it expands to more than {MAX_RATIO} times its size")
        buffer[: len(data)] = data
        return len(data)


@dataclass(frozen=True)
class Content:
    """An open input.

    Attributes:
        form: `lines` of OTLP JSON; one JSON `document`; `messages`, each after its length; `parquet`.
        stream: its bytes, not compressed any more.
        compressed: whether they were.

    """

    form: Form
    stream: io.BufferedReader
    compressed: bool


@contextmanager
def open_content(path: Path | None, label: str) -> Iterator[Content]:
    """Open a file, or stdin where `path` is None, and yield what it holds; errors call it `label`.

    Raises:
        CaptureError: the file cannot be opened, is empty, is a report of ours, or its head is damaged.

    """
    if path is None and sys.stdin is None:
        raise CaptureError(f"{label}: closed; give it a file or a pipe, or name a file")
    try:
        stream = _standard_input() if path is None else _heeding(path.open("rb", buffering=0))
    except OSError as error:
        raise CaptureError(f"{label}: cannot be read ({error.strerror})") from error
    try:
        yield _content(stream, label)
    finally:
        if path is not None:
            stream.close()


def _standard_input() -> io.BufferedReader:
    try:
        number = sys.stdin.fileno()
    except OSError:  # something of this process stands for it
        return cast(io.BufferedReader, sys.stdin.buffer)
    return _heeding(io.FileIO(number, closefd=False))


def _heeding(raw: io.FileIO) -> io.BufferedReader:
    return io.BufferedReader(_Heeding(raw), BUFFER_BYTES)


def _content(stream: io.BufferedReader, label: str) -> Content:
    compressed = False
    for _ in range(MAX_LAYERS):
        head = _peek(stream, label)
        if not head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            break
        compressed = True
        stream = inflate(stream)
    if head.startswith(PARQUET_MAGIC):
        return Content("parquet", stream, compressed)
    if command := report_of(head):
        raise CaptureError(no_capture(label, command))
    if is_message(head):
        return Content("messages", stream, compressed)
    return Content("document" if _is_document(head) else "lines", stream, compressed)


def inflate(stream: BinaryIO) -> io.BufferedReader:
    """Return the bytes that `stream`, gzip or zstd in any number of frames, stands for.

    Reading raises one of `TRUNCATED` where it is cut off, damaged, or expands without end.
    """
    counted = _Counted(stream)
    inflated: _Readable
    if cast(io.BufferedReader, stream).peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
        inflated = GzipFile(fileobj=cast(BinaryIO, counted))
    else:
        options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
        inflated = zstd.ZstdFile(cast(BinaryIO, counted), options=options)
    return io.BufferedReader(_Inflated(counted, inflated), BUFFER_BYTES)


def is_capture(head: bytes) -> bool:
    """Whether a file that begins like this may be a capture: for files that nobody named."""
    text = head.removeprefix(BOM).lstrip()
    return head.startswith((PARQUET_MAGIC, GZIP_MAGIC, ZSTD_MAGIC)) or text[:1] == b"{" or is_message(head)


def is_message(head: bytes) -> bool:
    """Whether `head` begins with the length of a message, and the message: Protobuf, or JSON or either compressed."""
    if len(head) <= LENGTH_BYTES or not 0 < int.from_bytes(head[:LENGTH_BYTES]) <= MAX_RECORD_BYTES:
        return False
    # Field 1 of every message of OTLP's is a list of messages.
    return head.startswith((b"\x0a", b"{", ZSTD_MAGIC), LENGTH_BYTES)


def _is_document(head: bytes) -> bool:
    """Whether the first line of JSON does not end where a value does: it goes on over the lines."""
    line, newline, _ = head.removeprefix(BOM).lstrip().partition(b"\n")
    if not newline or not line.rstrip().endswith((b"{", b"[", b",")):
        return False
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return True
    return False


def _peek(stream: io.BufferedReader, label: str) -> bytes:
    try:
        head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    except TRUNCATED as error:
        raise CaptureError(f"{label}: compressed, but cut off or damaged at its beginning ({error})") from error
    except OSError as error:
        raise CaptureError(f"{label}: cannot be read ({error.strerror})") from error
    if not head:
        raise CaptureError(f"{label}: empty; it holds no span yet, or the program that should write it did not run")
    return head
