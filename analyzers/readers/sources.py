"""Paths, folders, globs, stdin and addresses in object storage to the inputs that they stand for."""

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers.readers import object_storage
from analyzers.readers.content import PARQUET_MAGIC, is_capture
from analyzers.readers.own_reports import HEAD_BYTES, is_table_file, report_of
from analyzers.readers.tally import FILE, Tally
from otel_cache.errors import CaptureError

STDIN = "-"
LOCAL = "file://"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PART_SUFFIX = ".part.jsonl"
"""Of the file beside a Parquet file in which the sidecar keeps its spans until it ends."""
LINE_SUFFIXES = (".jsonl", ".ndjson")
NAMES_SHOWN = 3


@dataclass(frozen=True)
class Source:
    """An input to read.

    Attributes:
        label: what the user calls it.
        path: the file; None for stdin and object storage.
        found: it was found in a folder or beside a file, not named: what cannot be read there is passed over.
        address: of an object of Parquet in object storage; "" for files and stdin.

    """

    label: str
    path: Path | None
    found: bool = False
    address: str = ""

    @property
    def key(self) -> str:
        """What is the same for two names of one input."""
        return self.address or (STDIN if self.path is None else os.path.realpath(self.path))


def find_sources(paths: Sequence[str | os.PathLike[str]], tally: Tally) -> list[Source]:
    """Return the inputs that `paths` stand for: files as they are given, folders and globs in the order of names.

    With a file come those that the collector's rotation made of it, `name-TIMESTAMP.ext`.

    Raises:
        CaptureError: a path does not exist, a glob matches nothing, a folder holds no capture.

    """
    sources: list[Source] = []
    for given in paths:
        sources.extend(_resolve(os.fspath(given), tally))
    seen: set[str] = set()
    unique: list[Source] = []
    for source in sources:
        if source.key not in seen:
            unique.append(source)
        elif not source.found:
            tally.note(FILE, f"{source.label}: given more than once and read once")
        seen.add(source.key)
    return unique


def is_source(path: str, paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether the file `path` is one of the inputs that `paths` stand for, under whatever name, or is stdin.

    Raises:
        CaptureError: as `find_sources` does.

    """
    if not os.path.exists(path):  # noqa: PTH110
        return False
    local = [each for each in paths if not object_storage.is_address(os.fspath(each))]
    sources = find_sources(local, Tally())
    return any(_is_file(path, source) for source in sources)


def _is_file(path: str, source: Source) -> bool:
    """Whether the file `path`, which is there, is what `source` reads."""
    try:
        if source.path is not None:
            return os.path.samefile(path, source.path)  # noqa: PTH121
        return os.path.samestat(os.stat(path), os.fstat(sys.stdin.fileno()))  # noqa: PTH116
    except (AttributeError, OSError, ValueError):  # a link to nothing; closed, or no file of this process
        return False


def _resolve(text: str, tally: Tally) -> Iterator[Source]:
    if text == STDIN:
        yield Source("stdin", None)
        return
    if object_storage.is_address(text):
        for address in object_storage.objects(text):
            yield Source(address, None, found=address != text, address=address)
        return
    path = Path(text.removeprefix(LOCAL))
    rotated = _rotated(path)
    if path.is_dir():
        yield from _walk(path, tally)
    elif os.path.lexists(path) or rotated:
        # Just after a rotation the newest holds nothing.
        if os.path.lexists(path) and not (rotated and not path.stat().st_size):
            yield Source(text, path)
        if rotated:
            tally.note(
                FILE, f"{text}: read with {len(rotated)} rotated file{'' if len(rotated) == 1 else 's'} beside it"
            )
        yield from rotated
    elif SCHEME.match(text) and not text.startswith(LOCAL):
        raise CaptureError(
            f"{text}: of addresses only those in object storage are read ({', '.join(object_storage.STORES)}); "
            "download it first, or see `otel-cache fetch --help` for a tracing back end"
        )
    elif glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (the pattern may be absolute)
        if not matches:
            raise CaptureError(f"{text}: no file matches this pattern; check the folder and the quoting")
        reports = [match for match in matches if _is_own_report(Path(match))]
        if reports and len(reports) < len(matches):
            matches = [match for match in matches if match not in reports]
            _note_others(text, reports, tally)
        for match in matches:
            if Path(match).is_dir():
                if "**" not in text:
                    yield from _walk(Path(match), tally)
            else:
                yield Source(match, Path(match))
    else:
        raise CaptureError(f"{text}: no such file or folder; {_instead(path)}")


def _instead(path: Path) -> str:
    """Return what to give in place of `path`, which is not there: captures beside it of the same name and more.

    Such are the part file of a Parquet file that is still written, and a file that was compressed.
    """
    try:
        beside = [each for each in sorted(path.parent.iterdir()) if each.name.startswith(f"{path.name}.")]
        found = [each for each in beside if each.is_file() and looks_like_capture(each)]
    except (OSError, CaptureError):
        found = []
    if not found:
        return "give the file that the sidecar or a collector wrote"
    if [each.name for each in found] == [path.name + PART_SUFFIX]:
        return f"the sidecar makes it when it ends; until then give {found[0]}"
    return f"beside it {'is' if len(found) == 1 else 'are'} {', '.join(map(str, found[:NAMES_SHOWN]))}"


def _rotated(path: Path) -> list[Source]:
    """Return what the rotation of the collector's file exporter made of `path`, the oldest first."""
    name = re.compile(
        re.escape(path.stem)
        + r"-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}(-[a-z]+)?"
        + re.escape(path.suffix)
        + r"(\.gz|\.zst)?"
    )
    try:
        beside = (each for each in path.parent.iterdir() if name.fullmatch(each.name))
        found = sorted(each for each in beside if each.is_file() and each.stat().st_size)
    except OSError:
        return []
    return [Source(str(each), each, found=True) for each in found]


def _walk(folder: Path, tally: Tally) -> Iterator[Source]:
    found = False
    others: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith(".") or not path.is_file():
                continue
            if looks_like_capture(path):
                found = True
                yield Source(str(path), path, found=True)
            else:
                others.append(str(path.relative_to(folder)))
    if not found:
        raise CaptureError(
            f"{folder}: no capture in this folder; looked for OTLP JSON and Protobuf, Parquet, and downloads of Jaeger "
            "and Tempo, compressed or not, in subfolders too"
        )
    _note_others(str(folder), others, tally)


def _note_others(where: str, others: Sequence[str], tally: Tally) -> None:
    if others:
        shown = ", ".join(others[:NAMES_SHOWN]) + (", ..." if len(others) > NAMES_SHOWN else "")
        plural = "file that is no capture" if len(others) == 1 else "files that are no captures"
        tally.note(FILE, f"{where}: {len(others)} {plural} passed over ({shown})")


def _raise_unreadable(error: OSError) -> None:
    raise CaptureError(f"{error.filename}: cannot be read ({error.strerror})") from error


def looks_like_capture(path: Path) -> bool:
    """Return whether the file `path` is a capture, by its first bytes and its name; an empty one is none.

    Raises:
        CaptureError: it cannot be read.

    """
    head = _head(path)
    return bool(head) and (is_capture(head) or path.suffix in LINE_SUFFIXES) and not _is_report(path, head)


def _is_own_report(path: Path) -> bool:
    return path.is_file() and _is_report(path, _head(path))


def _is_report(path: Path, head: bytes) -> bool:
    return bool(report_of(head)) or (head.startswith(PARQUET_MAGIC) and is_table_file(path))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror})") from error
