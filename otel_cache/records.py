"""The records that vLLM's processes send to the sidecar, and their frames.

A connection carries frames: four bytes, big-endian, that give the payload's length, then the payload in
MessagePack. The first frame of a connection is a `Hello`, every later one a `Batch` or a `StatusRequest`; the sidecar
answers a batch with an `Acknowledge`, which nobody has to read. Structs travel as arrays with a tag in front; a newer
writer may append fields, which an older reader ignores, and send records of new kinds, which it passes over. Versions
that differ by 1 understand each other. Positions are token counts from the start of the prompt; times are nanoseconds
since the Unix epoch.
"""

import struct
from typing import Annotated, cast, get_args

import msgspec

from otel_cache.errors import RecordError

PROTOCOL_VERSION = 1
LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 16 << 20
FINGERPRINT_BYTES = 8

Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""A count, an index, a length in tokens: no vLLM has a larger one, and JSON's readers are exact so far."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Time = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Nanoseconds since the Unix epoch, as OTLP and Parquet can hold them."""
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""As large as an attribute can be: an age in nanoseconds, a setting."""

Scalar = str | bool | float | Integer
"""A value of an attribute: what OTLP can hold."""

Span = tuple[Natural, Natural, Natural]
"""Positions `first, first + step, ..., last` as (first, last, step)."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Opens a connection: which process speaks, and in which version of the protocol.

    `process` is a random hex string, one process life; `started` is when this process began to record. The last three
    are those of the latest `Acknowledge` of another sidecar, for one that does not know this process.
    """

    protocol: Natural
    process: str
    pid: Natural
    started: Time
    version: str
    acknowledged: Natural = 0
    held: Natural = 0
    evidence: dict[Number, Number] = {}


class Acknowledge(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """How far a sidecar has come with a process: every record with a number below `acknowledged` was received.

    Of these, `held` are in no span that was written yet. `evidence` is, by replica, the number of the next span of
    the evidence. `last`: the sidecar leaves and takes nothing more.
    """

    acknowledged: Natural
    held: Natural
    evidence: dict[Number, Number]
    last: bool = False


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Asks a sidecar how it is; it answers with one frame, see `otel_cache.sidecar.status`."""


class Replica(msgspec.Struct, frozen=True, array_like=True, tag="replica"):
    """A scheduler was seen for the first time: `replica` is its handle in this process's other records.

    `attributes` are resource attributes, ready to be exported: strings, numbers, booleans and lists of one of them.
    """

    sequence: Natural
    replica: Number
    time: Time
    attributes: dict[str, Scalar | list[Scalar] | None]


class GroupPass(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of a finder: what the groups were asked for, and what they had. All in tokens."""

    groups: list[Number]
    asked: Number
    hit: Number
    dropped: Natural
    alignment: Number


class Lookup(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="lookup"):
    """One call of the local prefix lookup.

    `tokens` is `Request.num_tokens`; `limit` the longest hit that was asked for; `uncached` the common prefix that
    some group holds beyond the hit. `above` gives, per group, the nearest position above the hit at which the group
    holds a state (None: none within the probed positions). `fingerprints` are those of every hash block in
    (hit, tokens], 8 bytes each; `hit_fingerprint` that of the hit; `ladder` those at hash_block * 2**k < hit;
    `common` those of the common grid in (hit, tokens]; `digest` that of all tokens. Multimodal items enter all of
    them at their offsets; `plain` is `common` without them, empty where there are no items. `key` is the digest of
    all extra keys but the items, `lora` and `salt` those of one each, `items` (offset, digest) of the items, `session`
    that of the session id; empty where there is none. `step` numbers the call of `schedule` that the lookup was made
    in: a later lookup of the request in the same step takes the place of the earlier one. `connector`: it was made for
    a KV connector, which may continue at the hit of the attention group alone.
    """

    sequence: Natural
    replica: Number
    start: Time
    end: Time
    request: str
    tokens: Number
    prompt_tokens: Number
    limit: Number
    hit: Number
    uncached: Number
    skipped: bool
    passes: list[GroupPass]
    above: list[Number | None]
    fingerprints: bytes
    hit_fingerprint: bytes
    ladder: bytes
    common: bytes
    digest: bytes
    key: bytes
    traceparent: str
    arrival: Time
    tracestate: str = ""
    plain: bytes = b""
    lora: bytes = b""
    salt: bytes = b""
    items: list[tuple[Number, bytes]] = []
    session: bytes = b""
    step: Number = 0
    connector: bool = False


class RepeatedLookup(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="repeat"):
    """The request's latest lookup was made again, with the same outcome: it was not admitted in between."""

    sequence: Natural
    replica: Number
    start: Time
    end: Time
    request: str
    step: Number


class Store(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="store"):
    """A group's manager went over the blocks of a request: what was registered, and what was not.

    `stored` were given a key; `masked` were computed, but the retention mask refused them; `missing` are null
    blocks: no state exists there; `wanted` are those of `missing` that the mask asked for. A record that the lookup
    did not name positions for (decode) carries `fingerprints` from the position `first_fingerprint` on, one per
    hash block.
    """

    sequence: Natural
    replica: Number
    time: Time
    request: str
    group: Number
    stored: list[Span]
    masked: list[Span]
    missing: list[Span]
    wanted: list[Span]
    first_fingerprint: Natural
    fingerprints: bytes


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request's share of a step: tokens [start, end)."""

    request: str
    start: Natural
    end: Natural
    prefill: bool


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="step"):
    """`Scheduler.schedule` returned. `chunks` are the requests that prefill or that stored something in this step.

    `admitted` maps the requests that this step took up to the tokens that admission found computed; `finished` and
    `preempted` are request ids; `usage` is the share of the block pool in use, 0 to 1. `owners` names, for the blocks
    whose keys left the cache in this step, the request that was given the block, and `owner_groups` the KV-cache group
    of it that was. `context` names the step's span: 16 bytes of trace id, 8 of span id; empty where the sidecar may
    choose.
    """

    sequence: Natural
    replica: Number
    index: Number
    start: Time
    end: Time
    running: Number
    waiting: Number
    scheduled: Number
    prefill_tokens: Number
    decode_tokens: Number
    chunks: list[Chunk]
    admitted: dict[str, Number]
    finished: list[str]
    preempted: list[str]
    usage: float
    owners: dict[Number, str]
    context: bytes = b""
    owner_groups: dict[Number, Number] = {}


class StepDone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="done"):
    """`Scheduler.update_from_output` was given this step's output at `start`: the step was executed by then."""

    sequence: Natural
    replica: Number
    index: Number
    start: Time
    end: Time


class Evict(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="evict"):
    """The last copies of some keys of one group left the cache.

    `positions`, `fingerprints` (8 bytes each), `keys` (digests of the extra keys; empty where no key has one), `ages`
    (time since each was stored, ns) and `blocks` (ids of the blocks that carried them) run in parallel; a fingerprint
    that is not known any more is eight zero bytes. `reason` is "allocation", or "replaced" where the block's own
    request registered it anew under another position. Whose allocation it was, the step's `owners` and
    `owner_groups` tell.
    """

    sequence: Natural
    replica: Number
    time: Time
    group: Number
    positions: list[Number]
    fingerprints: bytes
    keys: list[bytes]
    ages: list[Integer]
    blocks: list[Number]
    reason: str


class Reset(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="reset"):
    """The prefix cache was cleared."""

    sequence: Natural
    replica: Number
    time: Time


class Finished(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="finished"):
    """A request left the scheduler. `reason` is vLLM's word, empty where it has none; tokens and times are counts."""

    sequence: Natural
    replica: Number
    time: Time
    request: str
    reason: str
    output_tokens: Number
    preemptions: Number
    drafted: Number
    accepted: Number


class Executed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="executed"):
    """A worker ran a step, on the host's clock. `context` is that of the step's span; see `Step`.

    `replica` is the worker's own handle: a `Replica` record of its process gives its resource, `vllm.worker.rank`
    included.
    """

    sequence: Natural
    replica: Number
    index: Number
    context: bytes
    start: Time
    end: Time


Record = Replica | Lookup | RepeatedLookup | Store | Step | StepDone | Evict | Reset | Finished | Executed


class Unknown(msgspec.Struct, frozen=True):
    """A record of a kind that this reader does not know; nothing is lost with it."""

    sequence: int


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Records in the order of their numbers. `dropped` counts what this process has dropped since it began."""

    dropped: Natural
    records: list[Record]


class _RawBatch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    dropped: Natural
    records: list[msgspec.Raw]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    sequence: Natural


Message = Hello | Batch | StatusRequest

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_raw_decoder = msgspec.msgpack.Decoder(_RawBatch)
_record_decoder = msgspec.msgpack.Decoder(Record)
_head_decoder = msgspec.msgpack.Decoder(_Head)
_acknowledge_decoder = msgspec.msgpack.Decoder(Acknowledge)
_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(Record))

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What bytes of somebody else may raise when they are decoded; the last where values are nested too deeply."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return the frame of `message`: its length, then its payload."""
    payload = _encoder.encode(message)
    return LENGTH.pack(len(payload)) + payload


def decode_payload(payload: bytes | bytearray | memoryview) -> Message:
    """Return what a frame's payload holds.

    Raises:
        RecordError: the payload is not MessagePack, or not of this protocol.

    """
    try:
        return _decoder.decode(payload)
    except UNREADABLE as error:
        raise RecordError(f"not a record of protocol {PROTOCOL_VERSION}: {error}") from error


def salvage_batch(payload: bytes | bytearray | memoryview) -> tuple[Batch, int]:
    """Return the readable records of a batch that could not be decoded whole, and how many others it has.

    A record of a kind that is not known is there as `Unknown`.

    Raises:
        RecordError: the payload is no batch at all.

    """
    try:
        raw = _raw_decoder.decode(payload)
    except UNREADABLE as error:
        raise RecordError(f"not a frame of protocol {PROTOCOL_VERSION}: {error}") from error
    records: list[Record | Unknown] = []
    malformed = 0
    for each in raw.records:
        try:
            records.append(_record_decoder.decode(each))
        except UNREADABLE:
            if (sequence := _unknown_sequence(each)) is None:
                malformed += 1
            else:
                records.append(Unknown(sequence))
    return Batch(raw.dropped, cast("list[Record]", records)), malformed


def decode_acknowledge(payload: bytes | bytearray | memoryview) -> Acknowledge:
    """Return what a sidecar answered.

    Raises:
        RecordError: it is no `Acknowledge`.

    """
    try:
        return _acknowledge_decoder.decode(payload)
    except UNREADABLE as error:
        raise RecordError(f"not an answer of protocol {PROTOCOL_VERSION}: {error}") from error


def _unknown_sequence(record: msgspec.Raw) -> int | None:
    """Return the number of a record of a kind that is not known; None where the record is merely wrong."""
    try:
        head = _head_decoder.decode(record)
    except UNREADABLE:
        return None
    return head.sequence if head.kind not in _KINDS else None
