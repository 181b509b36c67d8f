"""Encoded batches on disk, while the collector is away.

    FOLDER/<destination>/<sidecar>/lock                 held for as long as that sidecar lives
    FOLDER/<destination>/<sidecar>/0000000000000042.spans

A segment is a row of batches: state (1 byte), spans, drops that the batch tells of, length, CRC-32 (4 bytes each,
big-endian), then an ExportTraceServiceRequest. A batch that was sent is marked in its state, so that a sidecar that
goes on with the file sends it no second time. Every file belongs to the user alone.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from otel_cache.errors import UsageError

_logger = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
FIRST_NUMBER = 10**12
"""Of the first segment: there is room for older ones before it."""
_HEADER = struct.Struct(">cIIII")
_WAITING, _SENT = b"w", b"s"


class Encoded(NamedTuple):
    """A batch as it is sent: `data` holds `spans` spans, which tell of `told` spans that were dropped before."""

    data: bytes
    spans: int
    told: int = 0


class _Entry(NamedTuple):
    offset: int
    spans: int
    told: int
    length: int
    crc: int


@dataclass
class _Segment:
    path: Path
    fd: int
    size: int = 0
    entries: deque[_Entry] = field(default_factory=deque)

    @property
    def spans(self) -> int:
        return sum(entry.spans for entry in self.entries)


class Spool:
    """A queue of batches on disk, of one sidecar. Not thread-safe.

    Attributes:
        spans: spans that wait.
        lost: spans that were dropped for want of room, or that were damaged.
        told: drops that the lost batches told of: to be told again.
        torn: batches that were cut short when their sidecar was killed; their spans may not be known.

    """

    def __init__(self, folder: str, destination: str, limit: int) -> None:
        """Take over what earlier sidecars left for `destination` below `folder`, and hold at most `limit` bytes.

        Raises:
            UsageError: the folder cannot be used.

        """
        self.spans = 0
        self.lost = 0
        self.told = 0
        self.torn = 0
        self._limit = limit
        self._segment_bytes = max(min(SEGMENT_BYTES, limit // 8), 1)
        self._root = Path(folder) / hashlib.sha256(destination.encode()).hexdigest()[:16]
        self._own: Path | None = None
        self._lock = -1
        self._segments: deque[_Segment] = deque()
        self._taken: _Entry | None = None
        self._failed = False
        try:
            self._adopt()
        except OSError as error:
            raise UsageError(f"cannot use the spool {folder}: {error.strerror or error}") from error

    def __len__(self) -> int:
        """Return how many batches wait."""
        return sum(len(segment.entries) for segment in self._segments)

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def limit(self) -> int:
        """Bytes that it holds at most."""
        return self._limit

    @property
    def folder(self) -> str:
        """Where the files of this sidecar are."""
        return str(self._own or self._root)

    def append(self, batch: Encoded) -> None:
        """Put a batch behind those that wait; what finds no room pushes the oldest out, what fails is lost."""
        while self._segments and not self._fits(batch):
            self._drop_oldest()
        self._write(batch, self._last_segment)

    def prepend(self, batches: Sequence[Encoded]) -> None:
        """Put batches before those that wait; of these the oldest are lost where there is no room for all."""
        for batch in reversed(batches):
            self._write(batch, self._segment_before)

    def peek(self) -> Encoded | None:
        """Return the oldest batch; None where none waits."""
        while self._segments:
            segment = self._segments[0]
            if not segment.entries:
                self._remove(self._segments.popleft())
                continue
            entry = segment.entries[0]
            data = b""
            with contextlib.suppress(OSError):
                data = os.pread(segment.fd, entry.length, entry.offset + _HEADER.size)
            if len(data) == entry.length and zlib.crc32(data) == entry.crc:
                self._taken = entry
                return Encoded(data, entry.spans, entry.told)
            self._lose(segment.entries.popleft())
            self.torn += 1
        return None

    def pop(self) -> None:
        """Take out the batch that `peek` returned: it was sent, or refused for good."""
        taken, self._taken = self._taken, None
        segment = self._segments[0] if self._segments else None
        if segment is None or not segment.entries or segment.entries[0] is not taken:
            return  # it was pushed out meanwhile
        self.spans -= segment.entries.popleft().spans
        with contextlib.suppress(OSError):
            os.pwrite(segment.fd, _SENT, taken.offset)
        if not len(self):
            # The last one: no file stays behind.
            while self._segments:
                self._remove(self._segments.popleft())

    def keep(self) -> None:
        """The batch that `peek` returned could not be sent: it waits, or is lost where it was pushed out meanwhile."""
        taken, self._taken = self._taken, None
        if taken is not None and not any(taken is entry for each in self._segments for entry in each.entries):
            self.spans += taken.spans
            self._lose(taken)

    def close(self) -> None:
        """Leave what waits to the next sidecar; without it nothing stays."""
        for segment in self._segments:
            if segment.entries:
                os.close(segment.fd)
            else:
                self._remove(segment)
        if self._own is not None and not len(self):
            _remove_folder(self._own)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self._own = -1, None
        self._segments.clear()

    def _adopt(self) -> None:
        """Move what sidecars that are gone left here into a folder of our own, in its order."""
        if not self._root.exists():
            return
        with _locked(_own_folder(self._root) / "lock") as _:
            for folder in sorted(each for each in self._root.iterdir() if each.is_dir()):
                lock = _try_lock(folder / "lock")
                if lock < 0:
                    continue
                for path in sorted(folder.glob("*.spans")):
                    own = self._open_own(locked=True)
                    target = own / f"{self._number(-1) + 1:016d}.spans"
                    path.rename(target)
                    self._load(target)
                _remove_folder(folder)
                os.close(lock)
        while self.bytes > self._limit and len(self._segments) > 1:
            self._drop_oldest()

    def _load(self, path: Path) -> None:
        segment = _Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        size = os.fstat(segment.fd).st_size
        while segment.size < size:
            header = os.pread(segment.fd, _HEADER.size, segment.size)
            if len(header) < _HEADER.size:
                self.torn += 1
                break
            state, spans, told, length, crc = _HEADER.unpack(header)
            end = segment.size + _HEADER.size + length
            if state not in (_WAITING, _SENT) or end > size:
                self.torn += 1
                if state == _WAITING:
                    self.lost += spans
                    self.told += told
                break
            if state == _WAITING:
                segment.entries.append(_Entry(segment.size, spans, told, length, crc))
                self.spans += spans
            segment.size = end
        os.ftruncate(segment.fd, segment.size)
        self._segments.append(segment)

    def _number(self, index: int) -> int:
        return int(self._segments[index].path.stem) if self._segments else FIRST_NUMBER

    def _fits(self, batch: Encoded) -> bool:
        return self.bytes + _HEADER.size + len(batch.data) <= self._limit

    def _drop_oldest(self) -> None:
        segment = self._segments.popleft()
        for entry in segment.entries:
            if entry is self._taken:
                self.spans -= entry.spans  # on its way: what becomes of it is not known yet
            else:
                self._lose(entry)
        self._remove(segment)
        self._warn("the spool is full: its oldest spans are dropped, and counted")

    def _lose(self, entry: _Entry) -> None:
        self.spans -= entry.spans
        self.lost += entry.spans
        self.told += entry.told

    def _write(self, batch: Encoded, choose: Callable[[], _Segment]) -> None:
        segment: _Segment | None = None
        crc = zlib.crc32(batch.data)
        try:
            if not self._fits(batch):
                raise OSError(errno.ENOSPC, "no room left below its limit")
            segment = choose()
            header = _HEADER.pack(_WAITING, batch.spans, batch.told, len(batch.data), crc)
            _write_all(segment.fd, header + batch.data, segment.size)
        except OSError as error:
            if segment is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(segment.fd, segment.size)
            self.lost += batch.spans
            self.told += batch.told
            reason = error.strerror or str(error)
            self._warn(f"cannot write to the spool {self.folder}: {reason}; spans are dropped, and counted")
            return
        segment.entries.append(_Entry(segment.size, batch.spans, batch.told, len(batch.data), crc))
        segment.size += _HEADER.size + len(batch.data)
        self.spans += batch.spans

    def _last_segment(self) -> _Segment:
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._segments.append(self._create(self._number(-1) + 1))
        return self._segments[-1]

    def _segment_before(self) -> _Segment:
        self._segments.appendleft(self._create(self._number(0) - 1))
        return self._segments[0]

    def _create(self, number: int) -> _Segment:
        path = self._open_own() / f"{number:016d}.spans"
        return _Segment(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _open_own(self, *, locked: bool = False) -> Path:
        """Return this sidecar's folder; made, and locked, when it is first needed."""
        if self._own is None:
            _own_folder(self._root)
            with contextlib.nullcontext() if locked else _locked(self._root / "lock"):
                own = self._root / f"{time.time_ns():020d}-{os.getpid()}"
                own.mkdir(mode=0o700)
                self._lock = _try_lock(own / "lock")
            self._own = own
        return self._own

    def _remove(self, segment: _Segment) -> None:
        os.close(segment.fd)
        with contextlib.suppress(OSError):
            segment.path.unlink()

    def _warn(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            _logger.warning("%s", message)


def _own_folder(folder: Path) -> Path:
    """Return `folder`, made for this user alone.

    Raises:
        OSError: it cannot be made, or it is another user's or open to others.

    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder of user {os.getuid()} alone")
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _try_lock(path: Path) -> int:
    """Return a descriptor that holds the lock on `path`; -1 where somebody else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "lock").unlink()
        folder.rmdir()


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
