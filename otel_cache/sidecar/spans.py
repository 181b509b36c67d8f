"""A finished span as the sidecar holds it, and its form for the SDK's exporters."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState

from otel_cache.package import SCOPE, VERSION
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.resource import ReplicaResource

Value = str | bool | int | float | Sequence[str] | Sequence[int]

NO_ATTRIBUTES: Mapping[str, Value] = MappingProxyType({})
_SCOPE = InstrumentationScope(SCOPE, VERSION)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanLink(msgspec.Struct, frozen=True, gc=False):
    """A link to the span that `context` names."""

    context: Context
    attributes: Mapping[str, Value] = NO_ATTRIBUTES


class SpanData(msgspec.Struct, frozen=True, gc=False):
    """A finished span of kind INTERNAL; `start` and `end` in nanoseconds since the epoch.

    `remote_parent` says that the parent is a span of another program; `trace_state` is the trace's W3C header. Spans
    whose `shape` is equal and not "" have attributes of the same names, in the same order, and of the same types: an
    encoder finds out about them but once.
    """

    name: str
    context: Context
    parent: Context | None
    start: int
    end: int
    attributes: Mapping[str, Value]
    resource: ReplicaResource
    links: Sequence[SpanLink] = ()
    remote_parent: bool = False
    trace_state: str = ""
    shape: str = ""

    def with_attribute(self, name: str, value: Value) -> "SpanData":
        """Return a copy that has another attribute."""
        return msgspec.structs.replace(self, attributes={**self.attributes, name: value}, shape="")


def to_readable(span: SpanData) -> ReadableSpan:
    """Return `span` as the SDK's exporters take it."""
    state = TraceState.from_header([span.trace_state]) if span.trace_state else None
    return ReadableSpan(
        name=span.name,
        context=_sdk_context(span.context, state),
        parent=_sdk_context(span.parent, state, remote=span.remote_parent) if span.parent else None,
        resource=span.resource,
        attributes=span.attributes,
        links=[Link(_sdk_context(link.context), link.attributes) for link in span.links],
        kind=SpanKind.INTERNAL,
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=_SCOPE,
    )


def _sdk_context(context: Context, state: TraceState | None = None, *, remote: bool = False) -> SpanContext:
    trace, span = int.from_bytes(context.trace_id, "big"), int.from_bytes(context.span_id, "big")
    return SpanContext(trace, span, is_remote=remote, trace_flags=_SAMPLED, trace_state=state)
