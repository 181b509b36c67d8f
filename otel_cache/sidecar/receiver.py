"""The Unix socket that vLLM's processes write their records to."""

import contextlib
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from otel_cache.errors import RecordError, UsageError
from otel_cache.records import LENGTH, MAX_FRAME_BYTES, PROTOCOL_VERSION, Batch, Hello, Message, decode_payload
from otel_cache.sidecar.launch import is_listening

_logger = logging.getLogger(__name__)

READ_BYTES = 1 << 18
MAX_PATH_BYTES = 107
FIRST_CONNECTION_SECONDS = 60.0
"""How long a sidecar that leaves when idle waits at least for the first process: vLLM takes its time to start."""
_CREDENTIALS = struct.Struct("3i")


class Session(Protocol):
    """Takes the batches of one connection."""

    def add(self, batch: Batch) -> None:
        """Take a batch."""

    def close(self) -> None:
        """The connection has ended."""


class _Connection:
    def __init__(self, sock: socket.socket, open_session: Callable[[Hello], Session]) -> None:
        self.sock = sock
        self._open_session = open_session
        self._session: Session | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes from the peer.

        Raises:
            RecordError: they are not frames of this protocol.

        """
        buffer = self._buffer
        buffer += data
        offset = 0
        while len(buffer) - offset >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, offset)
            if length > MAX_FRAME_BYTES:
                raise RecordError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
            end = offset + LENGTH.size + length
            if len(buffer) < end:
                break
            self._take(decode_payload(bytes(buffer[offset + LENGTH.size : end])))
            offset = end
        del buffer[:offset]

    def close(self) -> bool:
        """End the connection; return whether it ended within a frame."""
        self.sock.close()
        if self._session is not None:
            self._session.close()
        return bool(self._buffer)

    def _take(self, message: Message) -> None:
        if isinstance(message, Batch):
            if self._session is None:
                raise RecordError("the first frame of a connection is not a hello")
            self._session.add(message)
            return
        if not isinstance(message, Hello):
            return
        if self._session is not None:
            raise RecordError("a second hello on one connection")
        if message.protocol != PROTOCOL_VERSION:
            raise RecordError(
                f"process {message.pid} speaks protocol {message.protocol}, this sidecar {PROTOCOL_VERSION}: "
                "install the same version of otel-cache for both"
            )
        self._session = self._open_session(message)


class Receiver:
    """Listens, and hands on what arrives, in one thread: a peer is read only as fast as its records are dealt with.

    Attributes:
        rejected: connections that were ended because of what they sent, or because of whose they are.
        torn: connections that ended within a frame.

    """

    def __init__(self, path: str, open_session: Callable[[Hello], Session]) -> None:
        """Listen on the socket `path`; its folder is made, for this user only, where it is missing.

        Raises:
            UsageError: the path is too long or not usable, or another sidecar listens there.

        """
        self.rejected = 0
        self.torn = 0
        self.connections = 0
        self._path = path
        self._open_session = open_session
        self._listener = _listen(path)
        self._identity = Path(path).stat().st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._idle_since = time.monotonic()
        self._ever_connected = False

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
            if isinstance(key.data, _Connection):
                self._read(key.data)
            else:
                key.data()
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
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Connection):
                self._end(key.data)

    def stop_listening(self) -> None:
        """Remove the socket from the file system and close it."""
        if self._listener.fileno() < 0:
            return
        # Another sidecar may have put its own socket there after somebody removed ours.
        with contextlib.suppress(OSError):
            if Path(self._path).stat().st_ino == self._identity:
                Path(self._path).unlink()
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(credentials)
            if uid != os.getuid():
                self._reject(f"a process of user {uid} connected; only those of user {os.getuid()} may")
                sock.close()
                continue
            sock.setblocking(False)
            self.connections += 1
            self._ever_connected = True
            self._selector.register(sock, selectors.EVENT_READ, _Connection(sock, self._open_session))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(connection)
            return
        try:
            connection.feed(data)
        except RecordError as error:
            self._reject(str(error))
            self._end(connection, torn=False)

    def _end(self, connection: _Connection, *, torn: bool = True) -> None:
        self._selector.unregister(connection.sock)
        self.connections -= 1
        self._idle_since = time.monotonic()
        if connection.close() and torn:
            self.torn += 1

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        if self.rejected == 1:
            _logger.warning("closed a connection: %s (further ones are only counted)", reason)


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise UsageError(f"the socket path {path} has more than {MAX_PATH_BYTES} bytes: choose a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The last folder only: a path that is wrong from its start is a mistake, not a wish.
        Path(path).parent.mkdir(mode=0o700, exist_ok=True)
        if Path(path).is_socket():
            if is_listening(path):
                raise UsageError(f"another sidecar listens on {path}: stop it, or name another socket")
            Path(path).unlink()
        mask = os.umask(0o177)
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
