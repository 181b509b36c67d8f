"""The sidecar as a whole: a receiver, the builders, and where the spans go."""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, Protocol

from otel_cache.config import EXPORT
from otel_cache.errors import UsageError
from otel_cache.package import VERSION
from otel_cache.records import PROTOCOL_VERSION, Acknowledge, Batch, Hello, encode_frame
from otel_cache.semconv import names
from otel_cache.sidecar.backlog import NOTHING, Backlog
from otel_cache.sidecar.build import ProcessBuilder, Processes
from otel_cache.sidecar.export import ExportQueue
from otel_cache.sidecar.exporters import make_exporter, wants_export
from otel_cache.sidecar.launch import socket_lock
from otel_cache.sidecar.otlp_json import JsonLinesWriter
from otel_cache.sidecar.receiver import Receiver
from otel_cache.sidecar.sampling import TraceSampler
from otel_cache.sidecar.settings import Settings, read_settings
from otel_cache.sidecar.spans import SpanData
from otel_cache.sidecar.spool import Spool
from otel_cache.sidecar.status import Status
from otel_cache.sidecar.thinning import Thinning
from otel_cache.sidecar.tracing import TracingPlane

DRAIN_SECONDS = 2.0
ORPHAN_IDLE_SECONDS = 3.0
POLL_SECONDS = 0.5
COMPANY_SECONDS = 0.05
"""How long records wait in the socket for more to come: whoever writes there while nobody waits has nobody to wake,
which on a machine whose engine needs every core costs the engine more than the writing."""
FEW_BYTES = 16 << 10
"""Whoever sent less at once can wait: a socket holds over ten times as much."""
MAX_COUNT = 2**63 - 1
"""Of what processes say of themselves: the sum over many may be more than MessagePack can hold."""

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
        written_fd: descriptor that gets the number of spans in `out` at the end, for whoever started the sidecar to
            say; None: the sidecar says it.
        quiet: say at the end what was lost, and nothing else.

    """

    socket: str
    out: str | None = None
    endpoint: str | None = None
    append: bool = False
    exit_when_idle: float | None = None
    ready_fd: int | None = None
    parent_fd: int | None = None
    written_fd: int | None = None
    quiet: bool = False


class _Said(NamedTuple):
    """What a sidecar says at its end; `loss`: that something is missing, which is never kept back."""

    says: str
    loss: bool = False


class _Writer(Protocol):
    path: str

    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def kept(self) -> bool: ...
    def write(self, spans: list[SpanData]) -> None: ...
    def close(self) -> None: ...


class _Outputs:
    """The evidence file and the exporter, each where it is wanted."""

    def __init__(self, options: Options, settings: Settings) -> None:
        self.exports: ExportQueue | None = None
        self.plane: TracingPlane | None = None
        self.file: _Writer | None = None
        self.endpoint = ""
        self._written_fd = options.written_fd
        self.built = self.requests = self.traced = 0
        if wants_export(options.endpoint, options.out):
            exporter, self.endpoint = make_exporter(options.endpoint)
            thinning = Thinning(settings.step_share) if settings.thin else None
            self.plane = TracingPlane(TraceSampler(), thinning)
            self.exports = ExportQueue(exporter, Backlog(_open_spool(settings, self.endpoint)))
        if options.out:
            self.file = _open_file(options.out, options.append)
        if self.exports is None and self.file is None:
            _logger.warning(
                "spans go nowhere: export is turned off in the environment, and no file is named; "
                "name one with --out, or an endpoint with --endpoint"
            )

    def write(self, spans: list[SpanData]) -> None:
        """Write `spans`, the file first: that is the evidence."""
        if not spans:
            return
        self.built += len(spans)
        requests = [span for span in spans if span.name == names.REQUEST]
        self.requests += len(requests)
        self.traced += sum(span.remote_parent for span in requests)
        if self.file is not None:
            self.file.write(spans)
        if self.exports is not None and self.plane is not None:
            self.exports.put(self.plane.select(spans))

    def tick(self) -> None:
        """Send on what has waited long enough for company."""
        if self.exports is not None:
            self.exports.flush_old()

    def flush(self) -> None:
        """Send on what waits for company."""
        if self.exports is not None:
            self.exports.flush()

    def close(self) -> list[_Said]:
        """Finish; return what to say about it."""
        notes: list[_Said] = []
        kept = 0
        if self.plane is not None:
            self.plane.close()
        if self.exports is not None:
            kept = self.exports.close()
        if self.file is not None:
            self.file.close()
            if self._written_fd is None:
                kept_file = ", which holds what it held before" if self.file.kept else ""
                notes.append(_Said(f"{self.file.written} spans written to {self.file.path}{kept_file}"))
            else:
                with contextlib.suppress(OSError):
                    os.write(self._written_fd, str(self.file.written).encode())
            if self.file.lost:
                notes.append(_Said(f"{self.file.lost} spans could not be written", loss=True))
        standing = self.exports.backlog.standing if self.exports is not None else NOTHING
        if self.exports is not None and (standing.sent or standing.lost or kept):
            notes.append(_Said(f"{standing.sent} spans exported to {self.endpoint}"))
            if kept:
                notes.append(_Said(f"{kept} spans kept on disk for the next sidecar"))
            if standing.lost:
                notes.append(_Said(f"{standing.lost} spans could not be exported", loss=True))
            if self.exports.backlog.torn:
                notes.append(_Said(f"{self.exports.backlog.torn} batches in the spool were cut short", loss=True))
        if self.plane is not None and self.plane.sampled_out:
            notes.append(_Said(f"{self.plane.sampled_out} spans not exported because of sampling"))
        if self.plane is not None and self.plane.thinned:
            notes.append(_Said(f"{self.plane.thinned} spans of steps not exported, as {EXPORT} asks"))
        return notes


class _Session:
    """One process: what it sends becomes spans, and they are written before more is read."""

    def __init__(self, builder: ProcessBuilder, outputs: _Outputs) -> None:
        self._builder = builder
        self._outputs = outputs

    def add(self, batch: Batch) -> None:
        self._outputs.write(self._builder.add(batch))

    def progress(self) -> Acknowledge:
        return self._builder.progress

    def close(self) -> None:
        self._outputs.write(self._builder.close())
        # Nothing comes to keep these company.
        self._outputs.flush()


def serve(options: Options) -> bool:
    """Run a sidecar until it is told to stop, or until it is idle; return whether every span was written.

    Raises:
        UsageError: the socket or the file cannot be used, or the exporter's settings are impossible.

    """
    settings = read_settings()
    processes = Processes()
    outputs: _Outputs | None = None

    def open_session(hello: Hello) -> _Session:
        assert outputs is not None
        return _Session(processes.get(hello), outputs)

    # Signals first: one that comes while the exporter is loaded must not cost the capture.
    with _stop_signals() as (stopped, wake):
        # The socket before the file: a sidecar that finds another one listening must not empty its file.
        receiver = Receiver(options.socket, open_session, uids=settings.uids)
        try:
            outputs = _Outputs(options, settings)
        except BaseException:
            receiver.stop_listening()
            raise
        receiver.status = _status_reporter(receiver, processes, outputs)
        _spare_the_collector()
        receiver.watch(wake.fileno(), lambda: _swallow_wakeups(wake))
        idle = _watch_parent(receiver, options)
        if options.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)
        notes = None
        while not stopped():
            before = receiver.received
            receiver.poll(POLL_SECONDS)
            outputs.tick()
            if 0 < receiver.received - before < FEW_BYTES:
                time.sleep(COMPANY_SECONDS)
            seconds = idle()
            if seconds is not None and receiver.idle_for(seconds) and (notes := _leave(receiver, outputs, options)):
                break
        if notes is None:
            receiver.drain(DRAIN_SECONDS)
            notes = outputs.close()
    # Whoever started it for a command knows better why none came.
    if not processes.heard and options.parent_fd is None:
        notes.append(_Said("no vLLM process connected (is otel-cache installed in its environment?)"))
    _report(notes, receiver, processes, options.quiet)
    return outputs.file is None or not outputs.file.lost


def _status_reporter(receiver: Receiver, processes: Processes, outputs: _Outputs) -> Callable[[], bytes]:
    began = time.monotonic()

    def report() -> bytes:
        exports, plane, file = outputs.exports, outputs.plane, outputs.file
        standing = exports.backlog.standing if exports is not None else NOTHING
        return encode_frame(
            Status(
                version=VERSION,
                protocol=PROTOCOL_VERSION,
                pid=os.getpid(),
                uptime=time.monotonic() - began,
                processes=receiver.senders,
                processes_seen=processes.seen,
                spans_built=outputs.built,
                spans_written=file.written if file is not None else 0,
                spans_unwritten=file.lost if file is not None else 0,
                spans_exported=standing.sent,
                spans_lost=standing.lost,
                spans_waiting=standing.waiting,
                spans_spooled=standing.spooled,
                spool_bytes=standing.spool_bytes,
                spans_sampled=plane.sampled_out if plane is not None else 0,
                spans_thinned=plane.thinned if plane is not None else 0,
                missing=min(processes.missing, MAX_COUNT),
                malformed=receiver.malformed_records,
                failed=processes.failed,
                refused=receiver.rejected,
                requests=outputs.requests,
                requests_traced=outputs.traced,
                file=file.path if file is not None else "",
                endpoint=outputs.endpoint,
                export_succeeded=exports.succeeded if exports is not None else 0,
                export_failed=exports.failed if exports is not None else 0,
                export_error=exports.error if exports is not None else "",
            )
        )

    return report


def _open_spool(settings: Settings, endpoint: str) -> Spool | None:
    """Return the spool for an endpoint; None where there is none.

    Raises:
        UsageError: the folder was named and cannot be used.

    """
    if settings.spool is None:
        return None
    try:
        return Spool(settings.spool, endpoint, settings.spool_bytes)
    except UsageError as error:
        if settings.spool_named:
            raise
        _logger.warning("%s; spans wait in memory while the collector is away", error)
        return None


def _leave(receiver: Receiver, outputs: _Outputs, options: Options) -> list[_Said] | None:
    """Close down because nobody is connected; None where somebody is after all.

    Under the lock, so that whoever finds nobody listening starts the next sidecar only when this one is done with
    the file.
    """
    # Where the socket is gone, perhaps with its folder, nobody waits for this one.
    with socket_lock(options.socket, 0) if receiver.reachable else contextlib.nullcontext(True) as locked:
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


def _spare_the_collector() -> None:
    """Have the collector of cycles look seldom, and not at what was loaded: spans make no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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


def _report(notes: list[_Said], receiver: Receiver, processes: Processes, quiet: bool) -> None:
    if processes.missing:
        notes.append(_Said(f"{processes.missing} records never arrived", loss=True))
    if processes.failed:
        notes.append(_Said(f"{processes.failed} records could not be made spans", loss=True))
    if receiver.malformed_records:
        notes.append(_Said(f"{receiver.malformed_records} records could not be read", loss=True))
    if receiver.rejected:
        notes.append(_Said(f"{receiver.rejected} connections were refused", loss=True))
    told = [note.says for note in notes if note.loss or not quiet]
    if told:
        with contextlib.suppress(OSError):
            print("otel-cache: " + ", ".join(told), file=sys.stderr)
