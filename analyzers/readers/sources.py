"""Paths, folders, globs and stdin to open byte streams, told apart by their first bytes and not by their names."""

import glob
import gzip
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from analyzers.readers.tally import FILE, Tally
from otel_cache.errors import CaptureError

STDIN = "-"
PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"
LINE_SUFFIXES = (".jsonl", ".ndjson")
HEAD_BYTES = 64


@dataclass(frozen=True)
class Source:
    """An input to read.

    Attributes:
        label: what the user calls it.
        path: the file, or None for stdin.
        found: it was found in a folder, not named: what is no capture there is passed over.

    """

    label: str
    path: Path | None
    found: bool = False


def find_sources(paths: Sequence[str | os.PathLike[str]], tally: Tally) -> list[Source]:
    """Return the inputs that `paths` stand for: files as they are given, folders and globs in the order of names.

    Raises:
        CaptureError: a path does not exist, a glob matches nothing, a folder holds no capture.

    """
    sources: list[Source] = []
    for given in paths:
        sources.extend(_resolve(os.fspath(given)))
    seen: set[str] = set()
    unique: list[Source] = []
    for source in sources:
        key = STDIN if source.path is None else os.path.realpath(source.path)
        if key not in seen:
            unique.append(source)
        elif not source.found:
            tally.note(FILE, f"{source.label}: given more than once and read once")
        seen.add(key)
    return unique


def is_source(path: str, paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether the file `path` is one of the inputs that `paths` stand for, under whatever name.

    Raises:
        CaptureError: as `find_sources` does.

    """
    if not os.path.exists(path):  # noqa: PTH110
        return False
    sources = find_sources(paths, Tally())
    return any(source.path is not None and os.path.samefile(path, source.path) for source in sources)  # noqa: PTH121


def _resolve(text: str) -> Iterator[Source]:
    if text == STDIN:
        yield Source("stdin", None)
        return
    path = Path(text)
    if path.is_dir():
        yield from _walk(path)
    elif os.path.lexists(path):
        yield Source(text, path)
    elif glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (the pattern may be absolute)
        if not matches:
            raise CaptureError(f"{text}: no file matches this pattern; check the folder and the quoting")
        for match in matches:
            if Path(match).is_dir():
                if "**" not in text:
                    yield from _walk(Path(match))
            else:
                yield Source(match, Path(match))
    else:
        raise CaptureError(f"{text}: no such file or folder; give the file that the sidecar or a collector wrote")


def _walk(folder: Path) -> Iterator[Source]:
    found = False
    for parent, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file() and _looks_like_capture(path):
                found = True
                yield Source(str(path), path, found=True)
    if not found:
        raise CaptureError(
            f"{folder}: no capture in this folder; looked for OTLP JSON lines and Parquet, in subfolders too"
        )


def _raise_unreadable(error: OSError) -> None:
    raise CaptureError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _looks_like_capture(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror})") from error
    if not head:
        return False
    text = head.removeprefix(BOM).lstrip()
    return head.startswith((PARQUET_MAGIC, GZIP_MAGIC, ZSTD_MAGIC)) or text[:1] == b"{" or path.suffix in LINE_SUFFIXES


@contextmanager
def open_source(source: Source) -> Iterator[tuple[Literal["lines", "parquet"], BinaryIO]]:
    """Open `source` and yield what it holds, lines or Parquet, and the stream at its first byte.

    Raises:
        CaptureError: the file cannot be opened, is empty, or is compressed in a way that is not read.

    """
    try:
        stream = sys.stdin.buffer if source.path is None else source.path.open("rb")
    except OSError as error:
        raise CaptureError(f"{source.label}: cannot be read ({error.strerror})") from error
    try:
        head = _peek(stream, source.label)
        if head.startswith(PARQUET_MAGIC):
            # Parquet is read from its end: what cannot seek is taken into memory.
            yield "parquet", stream if stream.seekable() else io.BytesIO(stream.read())
        elif head.startswith(GZIP_MAGIC):
            yield "lines", cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        elif head.startswith(ZSTD_MAGIC):
            raise CaptureError(f"{source.label}: compressed with zstd; decompress it first: zstd -d {source.label}")
        else:
            yield "lines", stream
    finally:
        if source.path is not None:
            stream.close()


def _peek(stream: BinaryIO, label: str) -> bytes:
    try:
        head = cast(io.BufferedReader, stream).peek(HEAD_BYTES)[:HEAD_BYTES]
    except OSError as error:
        raise CaptureError(f"{label}: cannot be read ({error.strerror})") from error
    if not head:
        raise CaptureError(f"{label}: empty; it holds no span yet, or the program that should write it did not run")
    return head
