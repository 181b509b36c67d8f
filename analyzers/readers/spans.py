"""The flat span that every reader yields, whatever the capture's format."""

from typing import Any

import msgspec

from analyzers.readers.attributes import MAX_I64
from analyzers.readers.tally import SpanError

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
FOREIGN = -1
"""The life of a span that is another program's."""
WORKER = -2
"""The life of a worker's span: no replica's, and no part of the evidence."""


class FlatSpan(msgspec.Struct, gc=False):
    """One span of otel_cache.

    Attributes:
        life: which resource it has: an index into those of its batch, or, later, the handle of a replica's life.
        trace_id, span_id, parent_span_id: lower-case hex; the parent's is "" at a root.
        name: of the span.
        start, end: nanoseconds since the epoch.
        attributes: by name: strings, numbers, booleans and lists of them, not yet checked.

    """

    life: int
    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]


def check_identifier(written: str | None, length: int, what: str) -> str:
    """Return an identifier of `length` bytes as lower-case hex.

    Raises:
        SpanError: it is not hex of that length, or all zeros.

    """
    try:
        identifier = bytes.fromhex(written or "")
    except ValueError:
        identifier = b""
    if len(identifier) != length or not any(identifier):
        raise SpanError(f"the {what} is not {2 * length} hexadecimal digits")
    return identifier.hex()


def check_time(written: int | str | None, what: str) -> int:
    """Return a time in nanoseconds since the epoch.

    Raises:
        SpanError: it is not a number, or out of range.

    """
    try:
        time = int(written or 0)
    except ValueError as error:
        raise SpanError(f"the {what} time is not a number") from error
    if not 0 <= time <= MAX_I64:
        raise SpanError(f"the {what} time is out of range")
    return time


def checked_span(
    life: int,
    trace_id: str | None,
    span_id: str | None,
    parent_span_id: str | None,
    name: str | None,
    start: int | str | None,
    end: int | str | None,
    attributes: dict[str, Any],
) -> FlatSpan:
    """Return a span of what was written; its attributes are not checked.

    Raises:
        SpanError: an identifier or a time is none.

    """
    return FlatSpan(
        life,
        check_identifier(trace_id, TRACE_ID_BYTES, "trace id"),
        check_identifier(span_id, SPAN_ID_BYTES, "span id"),
        # All zeros are no parent.
        check_identifier(parent_span_id, SPAN_ID_BYTES, "parent span id") if (parent_span_id or "").strip("0") else "",
        name or "",
        check_time(start, "start"),
        check_time(end, "end"),
        attributes,
    )
