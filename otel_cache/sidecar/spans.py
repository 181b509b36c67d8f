"""A finished span as the sidecar holds it, and its form for the SDK's exporters."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.resource import ReplicaResource

Value = str | bool | int | float | Sequence[str] | Sequence[int]

_SCOPE = InstrumentationScope(SCOPE, VERSION)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Context(NamedTuple):
    """Names a span: 16-byte trace id and 8-byte span id, as integers that are not 0.

    `sampled` is what the caller decided for the whole trace; None: the trace begins here.
    """

    trace_id: int
    span_id: int
    sampled: bool | None = None


@dataclass(slots=True)
class SpanData:
    """A finished span of kind INTERNAL; `start` and `end` in nanoseconds since the epoch.

    `remote_parent` says that the parent is a span of another program.
    """

    name: str
    context: Context
    parent: Context | None
    start: int
    end: int
    attributes: Mapping[str, Value]
    resource: ReplicaResource
    links: Sequence[Context] = ()
    remote_parent: bool = False


def new_root() -> Context:
    """Return the context of a span that begins a trace."""
    return Context(_random_id(16), _random_id(8))


def new_child(parent: Context) -> Context:
    """Return the context of a new span in the trace of `parent`."""
    return Context(parent.trace_id, _random_id(8), parent.sampled)


def parse_traceparent(text: str) -> Context | None:
    """Return the span that a W3C `traceparent` header names; None where the header is not valid."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or (text.startswith("00") and match[4]):
        return None
    context = Context(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & TraceFlags.SAMPLED))
    return context if context.trace_id and context.span_id else None


def to_readable(span: SpanData) -> ReadableSpan:
    """Return `span` as the SDK's exporters take it."""
    return ReadableSpan(
        name=span.name,
        context=_sdk_context(span.context, remote=False),
        parent=_sdk_context(span.parent, remote=span.remote_parent) if span.parent else None,
        resource=span.resource,
        attributes=span.attributes,
        links=[Link(_sdk_context(link, remote=False)) for link in span.links],
        kind=SpanKind.INTERNAL,
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=_SCOPE,
    )


def _sdk_context(context: Context, *, remote: bool) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=remote, trace_flags=_SAMPLED)


def _random_id(size: int) -> int:
    # vLLM seeds `random` alike on every rank; the system's generator cannot be seeded.
    while not (value := int.from_bytes(os.urandom(size), "big")):
        pass
    return value
