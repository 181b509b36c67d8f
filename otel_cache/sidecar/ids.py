"""Trace and span ids, and the W3C headers that name a caller's."""

import os
import re
import struct

import msgspec
from opentelemetry.trace import TraceFlags

_BATCH = struct.Struct("8s" * 256)
_IDS = struct.Struct("16s8s")
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(
    r"([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MAX_MEMBERS = 32
"""Of a W3C `tracestate`."""


class Context(msgspec.Struct, frozen=True, gc=False):
    """Names a span: 16 bytes of trace id and 8 of span id, neither of them all zeros.

    `sampled` is what the caller decided for the whole trace; None: the trace begins here.
    """

    trace_id: bytes
    span_id: bytes
    sampled: bool | None = None


# vLLM seeds `random` alike on every rank; the system's generator cannot be seeded. A call of it for each id would cost
# more than the rest of a span's making, so ids are drawn 256 at a time. A forked child must not draw the same ones.
_spare: list[bytes] = []
os.register_at_fork(after_in_child=_spare.clear)


def new_root() -> Context:
    """Return the context of a span that begins a trace."""
    return Context(new_span_id() + new_span_id(), new_span_id())


def new_child(parent: Context) -> Context:
    """Return the context of a new span in the trace of `parent`."""
    return Context(parent.trace_id, _spare.pop() if _spare else new_span_id(), parent.sampled)


def new_span_id() -> bytes:
    """Return 8 random bytes that are not all zeros."""
    while not _spare:
        _spare.extend(filter(_NO_SPAN.__ne__, _BATCH.unpack(os.urandom(_BATCH.size))))
    return _spare.pop()


def read_context(data: bytes) -> Context | None:
    """Return the context that 16 bytes of trace id and 8 of span id name; None where they name none."""
    if len(data) != _IDS.size:
        return None
    trace, span = _IDS.unpack(data)
    return Context(trace, span) if trace != _NO_TRACE and span != _NO_SPAN else None


def parse_traceparent(text: str) -> Context | None:
    """Return the span that a W3C `traceparent` header names; None where the header is not valid."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or (text.startswith("00") and match[4]):
        return None
    trace, span = bytes.fromhex(match[1]), bytes.fromhex(match[2])
    if trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return Context(trace, span, bool(int(match[3], 16) & TraceFlags.SAMPLED))


def parse_tracestate(text: str) -> str:
    """Return a W3C `tracestate` header without its optional spaces; "" where any of its members is not valid."""
    # Not by the SDK's own parser: that logs a warning for each request whose caller sends a wrong one.
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    valid = len(members) <= MAX_MEMBERS and len(keys) == len(members) and all(map(_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""
