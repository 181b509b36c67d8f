"""The sender thread: packs what the ring holds into records and writes them to the sidecar's socket."""

import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from otel_cache.config import Config
from otel_cache.errors import OtelCacheError, RecordError
from otel_cache.faults import swallow
from otel_cache.package import VERSION
from otel_cache.pipeline.destination import find_difference
from otel_cache.pipeline.gate import Gate
from otel_cache.pipeline.ring import Ring
from otel_cache.records import (
    LENGTH,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Acknowledge,
    Batch,
    Hello,
    Record,
    Replica,
    decode_acknowledge,
    encode_frame,
)
from otel_cache.sidecar.launch import default_socket, ensure_daemon

_logger = logging.getLogger("vllm.otel_cache")

INTERVAL = 0.015
"""How long the thread sleeps: waking costs the scheduler more than what it then does, so that it wakes seldom."""
PATIENCE = 0.005
"""How long a record may wait for a moment in which the scheduler has nothing to do, after the interval."""
TURN_SECONDS = 0.000_2
"""How long the thread works before it lets the scheduler's have its turn, which lasts up to 5 ms: that is how Python
switches. So it takes no more than a twenty-fifth of a busy scheduler's time, and all that is idle."""
BEHIND = 64
"""Where more events wait, each so many make a turn longer by as much again: a scheduler that is never idle would
otherwise leave the thread behind for good."""
BATCH_RECORDS = 512
BATCH_SECONDS = 0.005
"""What has been packed for so long is sent, however much is still to be packed."""
RECONNECT_SECONDS = 1.0
SEND_TIMEOUT_SECONDS = 5.0
PENDING_BYTES = 32 << 20
FRAME_BYTES = 4 << 20
"""A batch that is larger travels in parts: the sidecar does not take frames of any size."""
UNACKNOWLEDGED_BYTES = 4 << 20


class _Frame(NamedTuple):
    """A frame with the records that are numbered from `first` to before `end`."""

    first: int
    end: int
    data: bytes


class Sender:
    """Owns one process's connection to the sidecar; its thread starts with the first event.

    What cannot be sent waits in memory, at most `PENDING_BYTES`; older frames go first, and the hole that they leave
    in the numbers says how many records are gone. A sidecar acknowledges what it has dealt with; the next one is told,
    and so knows what is missing. What one that left did not take is sent again; what one that died was sent is not,
    since it may have written it.
    """

    def __init__(self, config: Config, ring: Ring, gate: Gate, reconnected: Callable[[], None]) -> None:
        self._gate = gate
        self._reconnected = reconnected
        self._config = config
        self._ring = ring
        self._process = os.urandom(16).hex()
        self._started = time.time_ns()
        self._sequence = 0
        self._dropped_seen = ring.dropped
        self._pending: deque[_Frame] = deque()
        self._pending_bytes = 0
        self._unacknowledged: deque[_Frame] = deque()
        self._unacknowledged_bytes = 0
        self._progress = Acknowledge(0, 0, {})
        self._answers = bytearray()
        self._replicas: list[Record] = []
        self._introduced = False
        self._socket: socket.socket | None = None
        self._next_connect = 0.0
        self._stop = False
        self._work = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="otel-cache-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Send everything that was captured so far; False where that took longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while self._ring or self._pending:
            left = deadline - time.monotonic()
            # A send of the thread's own that does not end holds the lock.
            if left <= 0 or not self._work.acquire(timeout=left):
                return False
            try:
                self._next_connect = 0.0 if self._socket is None else self._next_connect
                self._pack_and_send(perf_counter() + PATIENCE, deadline)
            finally:
                self._work.release()
            if self._pending:
                time.sleep(0.01)
        return True

    def close(self, seconds: float) -> None:
        """Flush, end the thread and close the connection, within `seconds` and what a sidecar takes to start."""
        deadline = time.monotonic() + seconds
        self.flush(seconds)
        self._stop = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(max(deadline - time.monotonic(), 2 * INTERVAL))
        # Where the thread has not come to its end, the connection is still its own.
        if self._work.acquire(blocking=False):
            self._disconnect()
            self._work.release()

    def abandon(self) -> None:
        """Let go of the connection in a forked child: the sidecar is to hear of the parent's end."""
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        while not self._stop:
            patience = perf_counter() + PATIENCE
            try:
                more = True
                while more and not self._stop:
                    with self._work:
                        more = self._pack_and_send(patience)
            except Exception as error:
                swallow("sender", error)
            time.sleep(INTERVAL)

    def _pack_and_send(self, patience: float, deadline: float = math.inf) -> bool:
        """Pack a batch of what the ring holds, and send what waits, until `deadline`; return whether there is more.

        While the scheduler works this waits, until `patience` (both on the monotonic clock).
        """
        more = self._pack(patience)
        if self._pending:
            self._send(deadline)
        return more

    def _pack(self, patience: float) -> bool:
        records: list[Record] = []
        now = perf_counter()
        full, turn = now + BATCH_SECONDS, now + self._turn()
        while (event := self._ring.pop()) is not None:
            pack, *arguments = event
            if self._gate.busy and perf_counter() < patience:
                self._wait(patience)
                now = perf_counter()
                turn = now + self._turn()
                full = full if records else now + BATCH_SECONDS
            try:
                made = pack(self._sequence, *arguments)
                self._sequence += len(made)
                records += made
                if made and isinstance(made[0], Replica):
                    self._replicas += made
            except Exception as error:
                self._sequence += 1
                swallow("packing a record", error)
            now = perf_counter()
            if len(records) >= BATCH_RECORDS or now >= full:
                break
            if now >= turn:
                time.sleep(0)  # gives the interpreter back to the scheduler's thread
                turn = perf_counter() + self._turn()
        if records:
            self._queue(records)
        return event is not None

    def _turn(self) -> float:
        """Return how long the thread may work before the scheduler's has its turn, seconds."""
        return TURN_SECONDS * (1 + len(self._ring) // BEHIND)

    def _wait(self, until: float) -> None:
        """Wait while the scheduler works, at most `until`."""
        while self._gate.busy and (now := perf_counter()) < until:
            self._gate.wait(until - now)

    def _queue(self, records: list[Record]) -> None:
        dropped = self._ring.dropped
        # Dropped events use up numbers, so that whoever reads sees the hole.
        self._sequence += dropped - self._dropped_seen
        self._dropped_seen = dropped
        self._enqueue(dropped, records)
        while self._pending_bytes > PENDING_BYTES and len(self._pending) > 1:
            self._pending_bytes -= len(self._pending.popleft().data)

    def _enqueue(self, dropped: int, records: list[Record]) -> None:
        data = encode_frame(Batch(dropped, records))
        if len(data) > FRAME_BYTES and len(records) > 1:
            half = len(records) // 2
            self._enqueue(dropped, records[:half])
            self._enqueue(dropped, records[half:])
            return
        if len(data) > MAX_FRAME_BYTES:
            # Nobody would take it, however often it was sent: it leaves a hole in the numbers.
            swallow("queueing a record", RecordError(f"a record of {len(data)} bytes is more than a frame may have"))
            return
        self._pending.append(_Frame(records[0].sequence, records[-1].sequence + 1, data))
        self._pending_bytes += len(data)

    def _send(self, deadline: float) -> None:
        if self._socket is None and not self._connect(deadline):
            return
        assert self._socket is not None
        try:
            while self._pending and (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(min(SEND_TIMEOUT_SECONDS, left))
                self._socket.sendall(self._pending[0].data)
                frame = self._pending.popleft()
                self._pending_bytes -= len(frame.data)
                self._unacknowledged.append(frame)
                self._unacknowledged_bytes += len(frame.data)
                self._hear()
        except (OSError, OtelCacheError) as error:
            swallow("sending to the sidecar", error)
            self._disconnect()

    def _hear(self) -> None:
        """Take in how far the sidecar has come, as far as it has said so."""
        assert self._socket is not None
        self._socket.setblocking(False)
        try:
            while data := self._socket.recv(1 << 16):
                self._answers += data
        except OSError:
            pass  # nothing more now, or nothing more ever: then the next send says so
        while len(self._answers) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._answers)[0]
            if len(self._answers) < end:
                break
            self._progress = decode_acknowledge(bytes(self._answers[LENGTH.size : end]))
            del self._answers[:end]
        while self._unacknowledged and (
            self._unacknowledged[0].end <= self._progress.acknowledged
            or self._unacknowledged_bytes > UNACKNOWLEDGED_BYTES
        ):
            self._unacknowledged_bytes -= len(self._unacknowledged.popleft().data)

    def _connect(self, deadline: float) -> bool:
        now = time.monotonic()
        if now < self._next_connect:
            return False
        self._next_connect = now + RECONNECT_SECONDS
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(min(SEND_TIMEOUT_SECONDS, max(deadline - now, INTERVAL)))
        try:
            path, started = self._config.socket or default_socket(), False
            try:
                connection.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                if self._config.socket is not None:
                    raise
                started = ensure_daemon(path, self._config.out)
                connection.connect(path)
            connection.sendall(self._hello())
            # A sidecar that was started anew does not know the replicas.
            known = [replica for replica in self._replicas if replica.sequence < self._pending[0].first]
            if known:
                connection.sendall(encode_frame(Batch(self._ring.dropped, known)))
            if self._introduced:
                self._reconnected()
            elif not started and self._replicas:
                # The workers' spans go where their replica's do: it speaks for them.
                self._compare(path)
            self._introduced = True
        except (OSError, OtelCacheError) as error:
            connection.close()
            swallow("connecting to the sidecar", error)
            return False
        self._socket = connection
        return True

    def _compare(self, path: str) -> None:
        if difference := find_difference(self._config, path):
            _logger.warning(
                "otel-cache: the sidecar on %s was there before and %s: what the environment of this process names is "
                "for one that it starts itself",
                path,
                difference,
            )

    def _hello(self) -> bytes:
        one = self._progress
        return encode_frame(
            Hello(
                PROTOCOL_VERSION, self._process, os.getpid(), self._started, VERSION,
                one.acknowledged, one.held, one.evidence,
            )
        )  # fmt: skip

    def _disconnect(self) -> None:
        if self._socket is None:
            return
        try:
            self._hear()
        except OtelCacheError as error:
            swallow("hearing from the sidecar", error)
        self._socket.close()
        self._socket = None
        self._answers.clear()
        if self._progress.last:
            # It said that it takes nothing more: what came after is the next one's.
            self._pending.extendleft(reversed(self._unacknowledged))
            self._pending_bytes += self._unacknowledged_bytes
            self._progress = replace(self._progress, last=False)
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0


class Pipeline:
    """The way out of this process: a ring, and a sender that starts with the first event of each process."""

    def __init__(self, read_config: Callable[[], Config], reconnected: Callable[[], None] = lambda: None) -> None:
        """Begin with nothing; `reconnected` is called when what follows goes to another connection than before."""
        self._read_config = read_config
        self._reconnected = reconnected
        self.gate = Gate()
        self._ring = Ring()
        self._sender: Sender | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def push(self, event: tuple[Any, ...]) -> None:
        """Capture `event`: a function, and its arguments but for the first, the number of the first record it makes."""
        self._ring.push(event)
        if self._sender is None:
            self._start()

    def flush(self, seconds: float = 2.0) -> None:
        """Send what was captured so far, within `seconds`."""
        if self._sender is not None:
            self._sender.flush(seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Flush and close; the next event starts anew, with the environment of that moment."""
        with self._lock:
            sender, self._sender = self._sender, None
            if sender is not None:
                sender.close(seconds)

    def _start(self) -> None:
        with self._lock:
            if self._sender is None:
                self._sender = Sender(self._read_config(), self._ring, self.gate, self._reconnected)
                self._sender.start()

    def _forget(self) -> None:
        """Begin anew in a forked child: threads, locks and the connection are the parent's."""
        self._ring = Ring()
        self.gate.busy = False
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.abandon()
        self._lock = threading.Lock()
