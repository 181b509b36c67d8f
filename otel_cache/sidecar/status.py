"""How a sidecar is: the question, asked over its own socket, and the answer."""

import os
import socket
import time

import msgspec

from otel_cache.errors import RecordError, UsageError
from otel_cache.package import VERSION
from otel_cache.records import LENGTH, PROTOCOL_VERSION, UNREADABLE, Hello, StatusRequest, encode_frame

MAX_ANSWER_BYTES = 1 << 20


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """What a sidecar has done since it began. Spans and records are counts, times ns since the epoch, 0 for never.

    Attributes:
        uptime: seconds since it began.
        processes: processes that are connected and have sent records; `processes_seen` since it began.
        spans_built: spans made of records.
        spans_written: spans in the file; `spans_unwritten`: those that the disk refused.
        spans_exported: spans that the collector took; `spans_lost`: those that will never reach it.
        spans_waiting: spans that wait for the collector, in memory or on disk; `spans_spooled`: those on disk.
        spans_sampled: spans that sampling kept from the collector; `spans_thinned`: those that thinning did.
        missing: records that were sent or dropped and never arrived; `malformed`: those that could not be read;
            `failed`: those that could not be made spans.
        refused: connections that were ended or not taken.
        requests: requests whose span was made; `requests_traced`: those that had a traceparent of their caller.
        file: path of the evidence, empty where there is none; `endpoint`: where spans go, empty for nowhere.
        export_succeeded: when the collector last took spans; `export_failed`: when it last did not, with
            `export_error` as the reason.

    """

    version: str
    protocol: int
    pid: int
    uptime: float
    processes: int
    processes_seen: int
    spans_built: int
    spans_written: int
    spans_unwritten: int
    spans_exported: int
    spans_lost: int
    spans_waiting: int
    spans_spooled: int
    spool_bytes: int
    spans_sampled: int
    spans_thinned: int
    missing: int
    malformed: int
    failed: int
    refused: int
    requests: int
    requests_traced: int
    file: str
    endpoint: str
    export_succeeded: int
    export_failed: int
    export_error: str


_decoder = msgspec.msgpack.Decoder(Status)


def query_status(socket_path: str, seconds: float = 3.0) -> Status:
    """Ask the sidecar on `socket_path` how it is, and wait for at most `seconds`.

    Raises:
        UsageError: none listens there, or what listens does not answer like one.

    """
    hello = Hello(PROTOCOL_VERSION, os.urandom(16).hex(), os.getpid(), time.time_ns(), VERSION)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(seconds)
        try:
            asking.connect(socket_path)
        except OSError as error:
            raise UsageError(f"no sidecar listens on {socket_path}: {error.strerror or error}") from error
        try:
            asking.sendall(encode_frame(hello) + encode_frame(StatusRequest()))
            (length,) = LENGTH.unpack(_receive(asking, LENGTH.size))
            if length > MAX_ANSWER_BYTES:
                raise RecordError(f"an answer of {length} bytes")
            return _decoder.decode(_receive(asking, length))
        except (OSError, RecordError, *UNREADABLE) as error:
            raise UsageError(f"what listens on {socket_path} does not answer like a sidecar: {error}") from error


def describe(status: Status) -> str:
    """Return a status as text for people, one line for each subject."""
    one = status
    lines = [
        f"sidecar {one.version}, protocol {one.protocol}, process {one.pid}, up {_duration(one.uptime)}",
        f"processes: {one.processes} connected, {one.processes_seen} seen; {one.refused} connections refused",
        f"records: {one.missing} missing, {one.malformed} malformed, {one.failed} that could not be made spans",
        f"requests: {one.requests}, {one.requests_traced} of them with a trace context of their caller",
        f"spans: {one.spans_built} built",
    ]
    if one.file:
        refused = f", {one.spans_unwritten} that the disk refused" if one.spans_unwritten else ""
        lines.append(f"file: {one.spans_written} spans in {one.file}{refused}")
    else:
        lines.append("file: none")
    if not one.endpoint:
        lines.append("export: none")
        return "\n".join(lines)
    lines.append(f"export: {one.spans_exported} spans to {one.endpoint}, {one.spans_lost} lost, {_last(one)}")
    on_disk = f"{one.spans_spooled} of them on disk ({one.spool_bytes / (1 << 20):.1f} MiB)"
    lines.append(f"waiting: {one.spans_waiting} spans, {on_disk}")
    lines.append(f"kept back: {one.spans_sampled} spans by sampling, {one.spans_thinned} by thinning")
    return "\n".join(lines)


def _last(status: Status) -> str:
    if status.export_failed > status.export_succeeded:
        return f"the last try failed {_ago(status.export_failed)}: {status.export_error}"
    return f"the last {_ago(status.export_succeeded)}" if status.export_succeeded else "none tried yet"


def _ago(moment: int) -> str:
    return f"{_duration(max(time.time_ns() - moment, 0) / 1e9)} ago"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _receive(sock: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes; RecordError where the other side ends before."""
    data = b""
    while len(data) < size:
        if not (more := sock.recv(size - len(data))):
            raise RecordError("it closed the connection")
        data += more
    return data
