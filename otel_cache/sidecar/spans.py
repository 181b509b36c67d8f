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


class Shape:
    """Names of attributes, for spans that have the same ones, in the same order and of the same types, every time.

    Such spans hold the values alone, and an encoder finds out about names and types but once. Compared by identity.
    """

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        """Take the names, in the order of the values."""
        self.names = names


class SpanData(msgspec.Struct, frozen=True, gc=False):
    """A finished span of kind INTERNAL; `start` and `end` in nanoseconds since the epoch.

    `values` are its attributes, by name; where it has a `shape` their values alone, in the order of that.
    `remote_parent` says that the parent is a span of another program; `trace_state` is the trace's W3C header.
    """

    name: str
    context: Context
    parent: Context | None
    start: int
    end: int
    values: Mapping[str, Value] | tuple[Value, ...]
    resource: ReplicaResource
    links: Sequence[SpanLink] = ()
    remote_parent: bool = False
    trace_state: str = ""
    shape: Shape | None = None

    @property
    def attributes(self) -> Mapping[str, Value]:
        """The attributes by name."""
        values = self.values
        if not isinstance(values, tuple):
            return values
        return dict(zip(self.shape.names, values, strict=True)) if self.shape is not None else NO_ATTRIBUTES

    def with_attributes(self, attributes: Mapping[str, Value]) -> "SpanData":
        """Return a copy that has these attributes instead of its own."""
        return msgspec.structs.replace(self, values=attributes, shape=None)

    def with_attribute(self, name: str, value: Value) -> "SpanData":
        """Return a copy that has another attribute."""
        return self.with_attributes({**self.attributes, name: value})


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
