"""Trace and span ids, and the W3C headers that name a caller's."""

import os
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from opentelemetry.trace import TraceFlags

_BATCH = struct.Struct("256Q")
_IDS = struct.Struct(">QQQ")
"""A trace id, in two halves, and a span id."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(
    r"([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MAX_MEMBERS = 32
"""Of a W3C `tracestate`."""


class Context(NamedTuple):
    """Names a span: 16-byte trace id and 8-byte span id, as integers that are not 0.

    `sampled` is what the caller decided for the whole trace; None: the trace begins here.
    """

    trace_id: int
    span_id: int
    sampled: bool | None = None


# vLLM seeds `random` alike on every rank; the system's generator cannot be seeded. A call of it for each id would cost
# more than the rest of a span's making, so ids are drawn 256 at a time. A forked child must not draw the same ones.
_spare: list[int] = []
os.register_at_fork(after_in_child=_spare.clear)

# What Context(...) does in the end, at half the price: every span needs one.
_context: Callable[[type[Context], tuple[int, int, bool | None]], Context] = tuple.__new__


def new_root() -> Context:
    """Return the context of a span that begins a trace."""
    return _context(Context, (new_span_id() << 64 | new_span_id(), new_span_id(), None))


def new_child(parent: Context) -> Context:
    """Return the context of a new span in the trace of `parent`."""
    return _context(Context, (parent[0], _spare.pop() if _spare else new_span_id(), parent[2]))


def new_span_id() -> int:
    """Return 8 random bytes as an integer that is not 0."""
    while not _spare:
        _spare.extend(filter(None, _BATCH.unpack(os.urandom(_BATCH.size))))
    return _spare.pop()


def read_context(data: bytes) -> Context | None:
    """Return the context that 16 bytes of trace id and 8 of span id name; None where they name none."""
    if len(data) != _IDS.size:
        return None
    high, low, span = _IDS.unpack(data)
    trace = high << 64 | low
    return _context(Context, (trace, span, None)) if trace and span else None


def parse_traceparent(text: str) -> Context | None:
    """Return the span that a W3C `traceparent` header names; None where the header is not valid."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or (text.startswith("00") and match[4]):
        return None
    context = Context(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & TraceFlags.SAMPLED))
    return context if context.trace_id and context.span_id else None


def parse_tracestate(text: str) -> str:
    """Return a W3C `tracestate` header without its optional spaces; "" where any of its members is not valid."""
    # Not by the SDK's own parser: that logs a warning for each request whose caller sends a wrong one.
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    valid = len(members) <= MAX_MEMBERS and len(keys) == len(members) and all(map(_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""
