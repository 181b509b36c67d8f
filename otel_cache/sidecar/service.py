"""The sidecar as a whole: a receiver, the builders, and where the spans go."""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from otel_cache.records import Batch, Hello
from otel_cache.sidecar.build import ProcessBuilder, Processes
from otel_cache.sidecar.export import ExportQueue, make_exporter, wants_export
from otel_cache.sidecar.launch import socket_lock
from otel_cache.sidecar.otlp_json import JsonLinesWriter
from otel_cache.sidecar.receiver import Receiver
from otel_cache.sidecar.spans import SpanData

DRAIN_SECONDS = 2.0
ORPHAN_IDLE_SECONDS = 3.0
POLL_SECONDS = 0.5

_logger = logging.getLogger("otel_cache.sidecar")


@dataclass(frozen=True)
class Options:
    """What a sidecar is started with.

    Attributes:
        socket: path of the Unix socket to listen on.
        out: file for the evidence, Parquet where it ends in `.parquet`, else OTLP JSON lines; None: none.
        endpoint: where to export to; None: what the environment says.
        append: go on after what `out` holds instead of replacing it.
        exit_when_idle: leave when no process has been connected for so many seconds; None: never.
        ready_fd: descriptor that gets one byte once the sidecar listens; None: none.
        parent_fd: descriptor that reads as ended when whoever started the sidecar is gone; None: none.

    """

    socket: str
    out: str | None = None
    endpoint: str | None = None
    append: bool = False
    exit_when_idle: float | None = None
    ready_fd: int | None = None
    parent_fd: int | None = None


class _Writer(Protocol):
    path: str

    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int: ...
    def write(self, spans: list[SpanData]) -> None: ...
    def close(self) -> None: ...


class _Outputs:
    """The evidence file and the exporter, each where it is wanted."""

    def __init__(self, options: Options) -> None:
        self.exports: ExportQueue | None = None
        self.file: _Writer | None = None
        if wants_export(options.endpoint, options.out):
            exporter, self._endpoint = make_exporter(options.endpoint)
            self.exports = ExportQueue(exporter)
        if options.out:
            self.file = _open_file(options.out, options.append)
        if self.exports is None and self.file is None:
            _logger.warning(
                "spans go nowhere: export is turned off in the environment, and no file is named; "
                "name one with --out, or an endpoint with --endpoint"
            )

    def write(self, spans: list[SpanData]) -> None:
        """Write `spans`, the file first: that is the evidence."""
        if spans and self.file is not None:
            self.file.write(spans)
        if spans and self.exports is not None:
            self.exports.put(spans)

    def close(self) -> list[str]:
        """Finish; return what to say about it."""
        notes: list[str] = []
        if self.exports is not None:
            self.exports.close()
        if self.file is not None:
            self.file.close()
            notes.append(f"{self.file.written} spans written to {self.file.path}")
            if self.file.lost:
                notes.append(f"{self.file.lost} spans could not be written")
        if self.exports is not None and (self.exports.exported or self.exports.lost):
            notes.append(f"{self.exports.exported} spans exported to {self._endpoint}")
            if self.exports.lost:
                notes.append(f"{self.exports.lost} spans could not be exported")
        return notes


class _Session:
    """One connection: what it sends becomes spans, and they are written before more is read."""

    def __init__(self, builder: ProcessBuilder, write: Callable[[list[SpanData]], None]) -> None:
        self._builder = builder
        self._write = write

    def add(self, batch: Batch) -> None:
        self._write(self._builder.add(batch))

    def close(self) -> None:
        self._write(self._builder.close())


def serve(options: Options) -> bool:
    """Run a sidecar until it is told to stop, or until it is idle; return whether every span was written.

    Raises:
        UsageError: the socket or the file cannot be used, or the exporter's settings are impossible.

    """
    processes = Processes()
    outputs: _Outputs | None = None

    def open_session(hello: Hello) -> _Session:
        assert outputs is not None
        return _Session(processes.get(hello), outputs.write)

    # Signals first: one that comes while the exporter is loaded must not cost the capture.
    with _stop_signals() as (stopped, wake):
        # The socket before the file: a sidecar that finds another one listening must not empty its file.
        receiver = Receiver(options.socket, open_session)
        try:
            outputs = _Outputs(options)
        except BaseException:
            receiver.stop_listening()
            raise
        receiver.watch(wake.fileno(), lambda: _swallow_wakeups(wake))
        idle = _watch_parent(receiver, options)
        if options.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)
        notes = None
        while not stopped():
            receiver.poll(POLL_SECONDS)
            seconds = idle()
            if seconds is not None and receiver.idle_for(seconds) and (notes := _leave(receiver, outputs, options)):
                break
        if notes is None:
            receiver.drain(DRAIN_SECONDS)
            notes = outputs.close()
    if not processes.heard:
        notes.append("no vLLM process connected (is otel-cache installed in its environment?)")
    _report(notes, receiver, processes)
    return outputs.file is None or not outputs.file.lost


def _leave(receiver: Receiver, outputs: _Outputs, options: Options) -> list[str] | None:
    """Close down because nobody is connected; None where somebody is after all.

    Under the lock, so that whoever finds nobody listening starts the next sidecar only when this one is done with
    the file.
    """
    with socket_lock(options.socket, 0) as locked:
        if not locked or receiver.poll(0) or receiver.connections:
            return None
        receiver.drain(DRAIN_SECONDS)
        return outputs.close()


def _watch_parent(receiver: Receiver, options: Options) -> Callable[[], float | None]:
    """Return a function that says after how many idle seconds to leave: less once the parent is gone."""
    seconds = options.exit_when_idle

    def parent_gone() -> None:
        nonlocal seconds
        seconds = ORPHAN_IDLE_SECONDS if seconds is None else min(seconds, ORPHAN_IDLE_SECONDS)
        assert options.parent_fd is not None
        receiver.unwatch(options.parent_fd)

    if options.parent_fd is not None:
        receiver.watch(options.parent_fd, parent_gone)
    return lambda: seconds


@contextlib.contextmanager
def _stop_signals() -> Iterator[tuple[Callable[[], bool], socket.socket]]:
    """Yield whether a signal to stop has come, and a socket that wakes a selector when one does."""
    stop = False

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    previous_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield (lambda: stop), ours
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()


def _swallow_wakeups(wake: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while wake.recv(64):
            pass


def _open_file(path: str, append: bool) -> _Writer:
    if path.endswith(".parquet"):
        from otel_cache.sidecar.parquet import ParquetWriter

        return ParquetWriter(path, append=append)
    return JsonLinesWriter(path, append=append)


def _report(notes: list[str], receiver: Receiver, processes: Processes) -> None:
    if processes.missing:
        notes.append(f"{processes.missing} records never arrived")
    if processes.failed:
        notes.append(f"{processes.failed} records could not be made spans")
    if receiver.rejected:
        notes.append(f"{receiver.rejected} connections were refused")
    if notes:
        with contextlib.suppress(OSError):
            print("otel-cache: " + ", ".join(notes), file=sys.stderr)
