"""The Unix socket that vLLM's processes write their records to."""

import contextlib
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from otel_cache.errors import RecordError, UsageError
from otel_cache.records import MAX_FRAME_BYTES, Hello
from otel_cache.sidecar.connection import READ_BYTES, Connection, Session, SessionFactory
from otel_cache.sidecar.launch import is_listening

_logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
MAX_BUFFERED = 4 * MAX_FRAME_BYTES
"""Bytes of unfinished frames that all connections together may hold; each holds at most one frame."""
HELLO_SECONDS = 30.0
"""How long a connection may be silent before it says who it is."""
MAX_PATH_BYTES = 107
FIRST_CONNECTION_SECONDS = 60.0
"""How long a sidecar that leaves when idle waits at least for the first process: vLLM takes its time to start."""
_CREDENTIALS = struct.Struct("3i")
_PASSING = (ConnectionAbortedError, InterruptedError)
"""What went wrong with one connection that was to be accepted, and says nothing of the next."""


class Receiver:
    """Listens, and hands on what arrives, in one thread: a peer is read only as fast as its records are dealt with.

    Attributes:
        rejected: connections that were ended because of what they sent, whose they are, or how many there were.
        torn: connections that ended within a frame.
        malformed_records: records that could not be read.
        connections: connections that are open.
        received: bytes so far of what came with records.

    """

    def __init__(
        self,
        path: str,
        open_session: SessionFactory,
        *,
        status: Callable[[], bytes] = lambda: b"",
        uids: Iterable[int] = (),
    ) -> None:
        """Listen on the socket `path`; its folder is made where it is missing.

        Args:
            path: where to listen.
            open_session: called with the hello of a process that sends its first batch.
            status: returns the frame that answers a status request.
            uids: users besides this one whose processes may connect.

        Raises:
            UsageError: the path is too long or not usable, or another sidecar listens there.

        """
        self.rejected = 0
        self.torn = 0
        self.malformed_records = 0
        self.connections = 0
        self.received = 0
        self.status = status
        self._path = path
        self._uids = {own_uid(), *uids}
        self._open_session = open_session
        self._listener = _listen(path, others=self._uids != {own_uid()})
        self._identity = Path(path).stat().st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._idle_since = time.monotonic()
        self._ever_connected = False
        self._next_sweep = 0.0
        self._leaving = False
        self._accepting = True
        self._failed = False

    @property
    def senders(self) -> int:
        """Connections that have sent records."""
        return sum(each.sends_records for each in self._open())

    @property
    def reachable(self) -> bool:
        """Whether the socket is where it was made: somebody may have removed it, or put another one in its place."""
        try:
            return Path(self._path).stat().st_ino == self._identity
        except OSError:
            return False

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` from `poll` whenever `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        self._selector.unregister(fd)

    def poll(self, timeout: float) -> bool:
        """Deal with what is readable, waiting for at most `timeout` seconds; return whether anything was."""
        events = self._selector.select(timeout)
        for key, _ in events:
            if not isinstance(key.data, Connection):
                key.data()
            elif key.data.sock.fileno() >= 0:  # another connection's frame may have ended this one
                self._read(key.data)
        if (now := time.monotonic()) >= self._next_sweep:
            self._next_sweep = now + 1.0
            self._accept_again()
            for connection in [each for each in self._open() if each.greeted is None]:
                if now - connection.since > HELLO_SECONDS:
                    self._reject(f"nothing came in {HELLO_SECONDS:.0f} s")
                    self._end(connection, torn=False)
        return bool(events)

    def idle_for(self, seconds: float) -> bool:
        """Return whether no process has been connected for so long."""
        limit = seconds if self._ever_connected else max(seconds, FIRST_CONNECTION_SECONDS)
        return not self.connections and time.monotonic() - self._idle_since >= limit

    def drain(self, seconds: float) -> None:
        """Stop listening, then read what connected peers have sent, for at most `seconds`."""
        self._accept()
        self.stop_listening()
        deadline = time.monotonic() + seconds
        # A peer that was blocked in a write needs a moment to go on once its socket was read.
        while self.connections and time.monotonic() < deadline and self.poll(0.05):
            pass
        self._leaving = True
        for connection in list(self._open()):
            self._end(connection)

    def stop_listening(self) -> None:
        """Remove the socket from the file system and close it."""
        if self._listener.fileno() < 0:
            return
        if self.reachable:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()
        if self._accepting:
            self._selector.unregister(self._listener)
        self._listener.close()

    def open_session(self, connection: Connection, hello: Hello) -> Session:
        """Return the session of a process, after what it had sent by an earlier connection."""
        for other in list(self._open()):
            earlier = other is not connection and other.since <= connection.since
            if earlier and other.greeted is not None and other.greeted.process == hello.process:
                with contextlib.suppress(BlockingIOError, RecordError):
                    for _ in range(MAX_BUFFERED // READ_BYTES):
                        if not other.read():
                            break
                self._end(other)
        self._ever_connected = True
        return self._open_session(hello)

    def took(self, count: int) -> None:
        """Count bytes that have come with records."""
        self.received += count

    def malformed(self, records: int) -> None:
        """Count records that could not be read."""
        if records and not self.malformed_records:
            _logger.warning("a record could not be read and was left out (further ones are only counted)")
        self.malformed_records += records

    def _open(self) -> Iterator[Connection]:
        return (key.data for key in list(self._selector.get_map().values()) if isinstance(key.data, Connection))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except _PASSING:
                continue
            except OSError as error:
                self._rest(error)
                return
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(credentials)
            if uid not in self._uids:
                allowed = ", ".join(map(str, sorted(self._uids)))
                self._reject(f"a process of user {uid} connected; only those of {allowed} may")
                sock.close()
                continue
            if self.connections >= MAX_CONNECTIONS:
                self._reject(f"{MAX_CONNECTIONS} are open, more are not taken")
                sock.close()
                continue
            sock.setblocking(False)
            self.connections += 1
            self._selector.register(sock, selectors.EVENT_READ, Connection(sock, self))

    def _rest(self, error: OSError) -> None:
        """Take no connection until one ends, or the next sweep: those that wait would keep the listener readable."""
        if self._accepting:
            _logger.warning("cannot take a connection: %s (it waits, as do further ones)", error.strerror or error)
            self._selector.unregister(self._listener)
            self._accepting = False

    def _accept_again(self) -> None:
        if not self._accepting and self._listener.fileno() >= 0:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._accepting = True

    def _read(self, connection: Connection) -> None:
        try:
            going_on = connection.read()
        except BlockingIOError:
            return
        except RecordError as error:
            self._reject(str(error))
            self._end(connection, torn=False)
            return
        except Exception as error:
            self._fail()
            self._reject(f"what it sent could not be dealt with ({error})")
            self._end(connection, torn=False)
            return
        if not going_on:
            self._end(connection)
        elif connection.buffered > MAX_BUFFERED // MAX_CONNECTIONS:
            self._limit()

    def _limit(self) -> None:
        """End the connection that holds the most while all together hold too much."""
        while sum(each.buffered for each in self._open()) > MAX_BUFFERED:
            largest = max(self._open(), key=lambda each: each.buffered)
            self._reject(f"all together hold more than {MAX_BUFFERED} bytes of unfinished frames, this one the most")
            self._end(largest, torn=False)

    def _end(self, connection: Connection, *, torn: bool = True) -> None:
        self._selector.unregister(connection.sock)
        self.connections -= 1
        self._accept_again()
        if connection.sends_records:
            self._idle_since = time.monotonic()
        try:
            within = connection.close(last=self._leaving)
        except Exception:
            self._fail()
            return
        if within and torn:
            self.torn += 1

    def _fail(self) -> None:
        """Say what nobody foresaw: it costs its own connection, never those of others."""
        if not self._failed:
            self._failed = True
            _logger.exception("a connection failed")

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        if self.rejected == 1:
            _logger.warning("closed a connection: %s (further ones are only counted)", reason)


def own_uid() -> int:
    """Return the user that the sidecar runs as."""
    return os.getuid()


def _listen(path: str, *, others: bool) -> socket.socket:
    """Return a listening socket: of this user alone, or where `others` may connect, open to all who get that far."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise UsageError(f"the socket path {path} has more than {MAX_PATH_BYTES} bytes: choose a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_folder(Path(path).parent, others=others)
        if Path(path).is_socket():
            if is_listening(path):
                raise UsageError(f"another sidecar listens on {path}: stop it, or name another socket")
            Path(path).unlink()
        mask = os.umask(0o111 if others else 0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {path}: {error.strerror or error}") from error
    except UsageError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _make_folder(folder: Path, *, others: bool) -> None:
    try:
        # The last folder only: a path that is wrong from its start is a mistake, not a wish.
        folder.mkdir(mode=0o700)
    except FileExistsError:
        # A folder that was there is somebody's own: its mode is theirs to choose.
        if others and not folder.stat().st_mode & 0o001:
            _logger.warning("other users cannot reach a socket in %s: make it passable for them (chmod o+x)", folder)
        return
    if others:
        # Whoever connects is known by the kernel; that others may pass through says nothing of what lies here.
        folder.chmod(0o711)
