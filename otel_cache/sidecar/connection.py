"""One connection of a process: bytes in, messages out, and the answers to them."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Protocol

from otel_cache.errors import RecordError
from otel_cache.records import (
    LENGTH,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Acknowledge,
    Batch,
    Hello,
    StatusRequest,
    decode_payload,
    encode_frame,
    salvage_batch,
)

READ_BYTES = 1 << 18


class Session(Protocol):
    """Takes the batches of one process."""

    def add(self, batch: Batch) -> None:
        """Take a batch; what it finishes is written when this returns."""

    def progress(self) -> Acknowledge:
        """Return how far this process's records have come."""

    def close(self) -> None:
        """The connection has ended."""


class Host(Protocol):
    """What a connection needs of the sidecar."""

    def open_session(self, connection: "Connection", hello: Hello) -> Session:
        """Return the session of a process that sends its first batch."""

    def status(self) -> bytes:
        """Return the frame that says how the sidecar is."""

    def took(self, count: int) -> None:
        """Count bytes that have come with records."""

    def malformed(self, records: int) -> None:
        """Count records that could not be read."""


class Connection:
    """A connected process.

    Attributes:
        sock: its socket, not blocking.
        since: when it connected, by the monotonic clock.
        greeted: the hello, once it came.

    """

    def __init__(self, sock: socket.socket, host: Host) -> None:
        """Begin with a socket that was accepted."""
        self.sock = sock
        self.since = time.monotonic()
        self.greeted: Hello | None = None
        self._host = host
        self._session: Session | None = None
        self._buffer = bytearray()
        self._answers = True

    @property
    def buffered(self) -> int:
        """Bytes of a frame that has not come whole yet."""
        return len(self._buffer)

    @property
    def sends_records(self) -> bool:
        """Whether a batch has come."""
        return self._session is not None

    def read(self) -> bool:
        """Take what the peer has sent, at most `READ_BYTES`; return False where the connection has ended.

        Raises:
            BlockingIOError: there is nothing now.
            RecordError: it is not of this protocol.

        """
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            raise
        except OSError:
            return False
        if data:
            self._feed(data)
        return bool(data)

    def close(self, *, last: bool = False) -> bool:
        """End the connection, `last` because the sidecar leaves; return whether it ended within a frame."""
        try:
            if self._session is not None:
                self._session.close()
                progress = self._session.progress()
                self._answer(encode_frame(Acknowledge(progress.acknowledged, progress.held, progress.evidence, last)))
        finally:
            self.sock.close()
        return bool(self._buffer)

    def _feed(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        offset = 0
        batches = 0
        try:
            while len(buffer) - offset >= LENGTH.size:
                (length,) = LENGTH.unpack_from(buffer, offset)
                if length > MAX_FRAME_BYTES:
                    raise RecordError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
                end = offset + LENGTH.size + length
                if len(buffer) < end:
                    break
                with memoryview(buffer) as view:
                    payload = bytes(view[offset + LENGTH.size : end])
                offset = end
                batches += self._take(payload)
        finally:
            del buffer[:offset]
        if batches and self._session is not None:
            self._host.took(offset)
            self._answer(encode_frame(self._session.progress()))

    def _take(self, payload: bytes) -> bool:
        """Deal with a frame; return whether it was a batch."""
        try:
            message = decode_payload(payload)
        except RecordError:
            message, malformed = salvage_batch(payload)
            self._host.malformed(malformed)
        if isinstance(message, Hello):
            self._greet(message)
            return False
        if self.greeted is None:
            raise RecordError("the first frame of a connection is not a hello")
        if isinstance(message, StatusRequest):
            self._answer(self._host.status())
            return False
        if self._session is None:
            self._session = self._host.open_session(self, self.greeted)
        self._session.add(message)
        return True

    def _greet(self, hello: Hello) -> None:
        if self.greeted is not None:
            raise RecordError("a second hello on one connection")
        if abs(hello.protocol - PROTOCOL_VERSION) > 1:
            raise RecordError(
                f"process {hello.pid} speaks protocol {hello.protocol}, this sidecar {PROTOCOL_VERSION}: "
                "install versions of otel-cache that follow one another, or the same"
            )
        self.greeted = hello

    def _answer(self, frame: bytes) -> None:
        # A peer that does not read its answers gets no more of them: half of one would spoil those that follow.
        if self._answers:
            with contextlib.suppress(OSError):
                self._answers = self.sock.send(frame) == len(frame)


SessionFactory = Callable[[Hello], Session]
