"""What the sidecar's tests share: records, a peer that speaks the protocol, and a reader of what came out."""

import json
import os
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.records import (
    PROTOCOL_VERSION,
    Batch,
    Chunk,
    Evict,
    Executed,
    Finished,
    GroupPass,
    Hello,
    Lookup,
    Record,
    RepeatedLookup,
    Replica,
    Reset,
    Step,
    StepDone,
    Store,
    encode_frame,
)
from otel_cache.semconv import names
from otel_cache.sidecar.status import Status, query_status

PATIENCE_SECONDS = 30.0
BLOCK = 1600
ATTRIBUTES: dict[str, Any] = {
    names.REPLICA_ID: "host:8000",
    names.GROUPS_KIND: ["mamba", "mamba", "mamba", "full_attention"],
    names.GROUPS_BLOCK_SIZE: [BLOCK] * 4,
    names.HASH_BLOCK_SIZE: BLOCK,
    names.HIT_ALIGNMENT: BLOCK,
}
HYBRID_MISS = [
    GroupPass([3], 11909, 9600, 1600, BLOCK),
    GroupPass([0, 1, 2], 9600, 0, 0, BLOCK),
    GroupPass([3], 0, 0, 0, BLOCK),
]


def hello(process: str = "ab12", protocol: int = PROTOCOL_VERSION) -> Hello:
    """Return a hello of the process `process`."""
    return Hello(protocol, process, os.getpid(), 1, "0.1.0")


def replica(sequence: int = 0, handle: int = 0, **attributes: Any) -> Replica:
    """Return a hybrid replica's settings."""
    return Replica(sequence, handle, 1, {**ATTRIBUTES, **attributes})


def lookup(sequence: int, request: str = "q", start: int = 100, **changes: Any) -> Lookup:
    """Return a lookup of 11,910 tokens that hits nothing, with `changes`."""
    fields: dict[str, Any] = {
        "replica": 0, "end": start + 10, "tokens": 11910, "prompt_tokens": 11910, "limit": 11909, "hit": 0,
        "uncached": 9600, "skipped": False, "passes": HYBRID_MISS, "above": [None, None, None, BLOCK],
        "fingerprints": bytes(range(56)), "hit_fingerprint": b"", "ladder": b"", "common": b"c" * 16,
        "digest": b"d" * 8, "key": b"", "traceparent": "", "arrival": 50,
    }  # fmt: skip
    return Lookup(sequence=sequence, start=start, request=request, **{**fields, **changes})


def repeated(sequence: int, request: str = "q", start: int = 300, step: int = 0) -> RepeatedLookup:
    """Return another lookup with the same outcome."""
    return RepeatedLookup(sequence, 0, start, start + 10, request, step)


def finished(sequence: int, request: str = "q", time: int = 900, **changes: Any) -> Finished:
    """Return the end of a request that generated 7 tokens, with `changes`."""
    fields = {"reason": "stop", "output_tokens": 7, "preemptions": 0, "drafted": 0, "accepted": 0, **changes}
    return Finished(sequence=sequence, replica=0, time=time, request=request, **fields)


def executed(sequence: int, context: bytes, index: int = 0, start: int = 400) -> Executed:
    """Return the run of a step on a worker."""
    return Executed(sequence, 0, index, context, start, start + 50)


def store(sequence: int, group: int = 0, request: str = "q", time: int = 200, **changes: Any) -> Store:
    """Return a store of 9,600 by one group, with `changes`."""
    fields: dict[str, Any] = {
        "replica": 0, "stored": [(9600, 9600, BLOCK)], "masked": [(8000, 8000, BLOCK)],
        "missing": [(1600, 6400, BLOCK)], "wanted": [], "first_fingerprint": 0, "fingerprints": b"",
    }  # fmt: skip
    return Store(sequence=sequence, group=group, request=request, time=time, **{**fields, **changes})


def evict(sequence: int, group: int = 0, evictor: str = "q", time: int = 190, **changes: Any) -> Evict:
    """Return an eviction of two blocks of one group, with `changes`; a step's owners give these blocks to `q`."""
    fields: dict[str, Any] = {
        "replica": 0, "positions": [3200, 1600], "fingerprints": b"1" * 8 + b"2" * 8, "keys": [b"", b""],
        "ages": [5_000_000, 7_900_000], "blocks": [11, 12] if evictor else [21, 22], "reason": "allocation",
    }  # fmt: skip
    return Evict(sequence=sequence, group=group, time=time, **{**fields, **changes})


def step(sequence: int, index: int = 0, start: int = 90, **changes: Any) -> Step:
    """Return a step that scheduled nothing, with `changes`."""
    fields: dict[str, Any] = {
        "replica": 0, "end": start + 200, "running": 1, "waiting": 2, "scheduled": 1, "prefill_tokens": 2048,
        "decode_tokens": 3, "chunks": [], "admitted": {}, "finished": [], "preempted": [], "usage": 0.25,
        "owners": {11: "q", 12: "q"},
    }  # fmt: skip
    return Step(sequence=sequence, index=index, start=start, **{**fields, **changes})


def done(sequence: int, index: int = 0, start: int = 1_000_000_290) -> StepDone:
    """Return the end of a step."""
    return StepDone(sequence, 0, index, start, start + 10)


SPANS = 9
"""Spans that `whole_request` makes."""


def whole_request(first: int = 0, request: str = "q") -> list[Record]:
    """Return the records of one request from lookup to finish, numbered from `first`."""
    return [
        replica(first),
        lookup(first + 1, request),
        evict(first + 2, evictor=request),
        store(first + 3, 0, request),
        store(first + 4, 3, request),
        step(first + 5, 0, chunks=[Chunk(request, 8000, 9600, True)], admitted={request: 0}),
        done(first + 6, 0),
        Reset(first + 7, 0, 300),
        step(first + 8, 1, 2_000_000_000, finished=[request]),
        done(first + 9, 1, 3_000_000_000),
    ]


class Peer:
    """A process that sends records to a sidecar."""

    def __init__(self, path: str, greeting: Hello | None = None) -> None:
        """Connect, and say hello where one is given."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        if greeting is not None:
            self.socket.sendall(encode_frame(greeting))

    def send(self, *records: Record, dropped: int = 0) -> None:
        """Send one batch."""
        self.socket.sendall(encode_frame(Batch(dropped, list(records))))

    def ended(self) -> bool:
        """Wait until the sidecar has closed the connection; return whether it has."""
        self.socket.settimeout(10)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


@dataclass
class Read:
    """A span as it came out, its values plain."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: list[tuple[str, str]] = field(default_factory=list)
    link_attributes: list[dict[str, Any]] = field(default_factory=list)
    trace_state: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key]


def parse_lines(path: Path) -> list[ExportTraceServiceRequest]:
    """Read OTLP JSON lines with protobuf's own parser, which wants ids in base64."""
    return [parse_line(json.loads(line)) for line in path.open()]


def parse_line(line: Any) -> ExportTraceServiceRequest:
    """Return what one line holds, of which JSON's own parser has made values."""
    return ParseDict(rewrite_ids(line), ExportTraceServiceRequest())


def read_lines(path: Path) -> list[Read]:
    """Read all spans of a file of OTLP JSON lines."""
    return read_requests(parse_lines(path))


def read_requests(requests: Sequence[ExportTraceServiceRequest]) -> list[Read]:
    """Read all spans of OTLP requests."""
    return [
        Read(
            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.start_time_unix_nano,
            span.end_time_unix_nano, _plain(span.attributes), _plain(group.resource.attributes),
            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            [_plain(link.attributes) for link in span.links], span.trace_state,
        )
        for request in requests
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]  # fmt: skip


def named(spans: Sequence[Read], name: str) -> list[Read]:
    """Return the spans of one name."""
    return [span for span in spans if span.name == name]


def status_of(path: str) -> Status:
    """Ask a sidecar how it is; on a machine with much to do it may take a while to answer."""
    return query_status(path, PATIENCE_SECONDS)


def wait_until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """Return what `condition` returns once that is true.

    Raises:
        TimeoutError: it was not, for so long.

    """
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} was not true within {seconds} s")
        time.sleep(0.01)
    return result


def rewrite_ids(value: Any) -> Any:
    """Return OTLP JSON with its ids in base64, as protobuf's own parser wants them."""
    if isinstance(value, list):
        return [rewrite_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            key: b64encode(bytes.fromhex(each)).decode() if key in ("traceId", "spanId", "parentSpanId") else
            rewrite_ids(each)
            for key, each in value.items()
        }  # fmt: skip
    return value


def _plain(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
