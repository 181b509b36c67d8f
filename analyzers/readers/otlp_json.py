"""OTLP JSON, as the sidecar and the collector's file exporter write it, to typed columns.

A record is one `TracesData` message of the OTLP file format, or what a tracing back end lets its users download. Most
have but spans of otel_cache with the attributes of the registry, each of its type: those are decoded at once
(`_read_plainly`). All others are decoded span by span, so that a damaged one costs itself and not its line, and those
of other programs are counted without being decoded.
"""

import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Union

import msgspec

from analyzers.readers import documents
from analyzers.readers.attributes import shorten
from analyzers.readers.columns import BatchBuilder, Lists
from analyzers.readers.counters import read_points
from analyzers.readers.framing import Record
from analyzers.readers.otlp_values import ABSENT, DECODE_ERRORS, Attribute, Camel, flatten
from analyzers.readers.spans import FOREIGN, FlatSpan, checked_span
from analyzers.readers.tally import BAD_SPAN, NOT_JSON, NOT_OTLP, SpanError
from otel_cache.package import SCOPE
from otel_cache.semconv.types import SPAN_TYPES

TELLING = (
    b"gen_ai.usage.", b"llm_d.kv_cache.prefix_match.", b"llm_d.kv_cache.block_keys.", b"llm_d.epp.producer.",
    b"llm_d.epp.picker.", b"vllm.backend_url", b"server.address", b"url.full",
)  # fmt: skip
"""What spans hold that say how many tokens a model was given, what a router saw cached, or whom a request went to."""
PLAIN_BYTES = 4 << 20
"""Longer lines are decoded span by span, which takes less memory."""
PLAIN_RECORDS = 16
"""So many lines are decoded at a time: more would not fit into the processor's cache as objects."""


class _Span(Camel):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[Attribute] | None = None


class _Scope(Camel):
    name: str | None = None


class _ScopeSpans(Camel):
    scope: _Scope | None = None
    spans: list[msgspec.Raw] | None = None


class _ResourceSpans(Camel):
    resource: msgspec.Raw = ABSENT
    scope_spans: list[_ScopeSpans] | None = None


class _Line(Camel):
    resource_spans: list[_ResourceSpans] | None = None
    resource_logs: msgspec.Raw = ABSENT
    resource_metrics: msgspec.Raw = ABSENT
    resource_profiles: msgspec.Raw = ABSENT


class _Resource(Camel):
    attributes: list[Attribute] | None = None


_line_decoder = msgspec.json.Decoder(_Line)
_span_decoder = msgspec.json.Decoder(_Span)
_resource_decoder = msgspec.json.Decoder(_Resource)


class _Int(Camel):
    int_value: int


class _String(Camel):
    string_value: str


class _Boolean(Camel):
    bool_value: bool


class _Double(Camel):
    double_value: float


class _Ints(Camel):
    values: list[_Int] = []


class _Strings(Camel):
    values: list[_String] = []


class _IntArray(Camel):
    array_value: _Ints


class _StringArray(Camel):
    array_value: _Strings


# How a value of each type is decoded, and where in the decoded it is.
_VALUES: dict[str, tuple[type, str]] = {
    "int": (_Int, "int_value"),
    "string": (_String, "string_value"),
    "boolean": (_Boolean, "bool_value"),
    "double": (_Double, "double_value"),
    "int[]": (_IntArray, "array_value.values"),
    "string[]": (_StringArray, "array_value.values"),
}
_ELEMENTS = {"int[]": attrgetter("int_value"), "string[]": attrgetter("string_value")}

# One class for each attribute: that its name and type are those of the registry is checked while it is decoded.
_NAMES: dict[type, str] = {
    msgspec.defstruct(f"_Attribute{number}", [("value", _VALUES[kind][0])], tag_field="key", tag=name, gc=False): name
    for number, (name, kind) in enumerate(SPAN_TYPES.items())
    if kind in _VALUES
}


class _PlainSpan(Camel):
    trace_id: str
    span_id: str
    name: str
    start_time_unix_nano: int
    end_time_unix_nano: int
    parent_span_id: str = ""
    attributes: list[Union[tuple(_NAMES)]] = []  # type: ignore[valid-type]  # noqa: UP007


class _PlainScopeSpans(Camel):
    scope: _Scope
    spans: list[_PlainSpan]


class _PlainResourceSpans(Camel):
    scope_spans: list[_PlainScopeSpans]
    resource: msgspec.Raw = ABSENT


class _PlainLine(Camel):
    resource_spans: list[_PlainResourceSpans]


# Numbers stand in quotes or not.
_plain_decoder = msgspec.json.Decoder(_PlainLine, strict=False)
_base = attrgetter("trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano")
_attributes = attrgetter("attributes")

_Owner = tuple[int, int]
"""Index of the resource, and number of the line."""
_Shapes = dict[tuple[Any, ...], tuple[list[_PlainSpan], list[_Owner]]]
"""By the name of the spans and the classes of their attributes."""


class _Misfit(Exception):
    """A record that has to be read span by span."""


def read(records: Sequence[Record], builder: BatchBuilder) -> None:
    """Give the spans in lines or documents to `builder`; what cannot be read is counted there."""
    for at in range(0, len(records), PLAIN_RECORDS):
        shapes: _Shapes = {}
        for record in records[at : at + PLAIN_RECORDS]:
            try:
                _read_plainly(record, builder, shapes)
            except (_Misfit, SpanError, *DECODE_ERRORS):
                _read_exactly(record, builder)
        for (name, *shape), (spans, owners) in shapes.items():
            _add_shape(name, shape, spans, owners, builder)


def _read_plainly(record: Record, builder: BatchBuilder, shapes: _Shapes) -> None:
    """Put the spans of a record to those with the same attributes, all of them or none."""
    if len(record.data) > PLAIN_BYTES:
        raise _Misfit
    found = []
    for resource_spans in _plain_decoder.decode(record.data).resource_spans:
        owner = read_resource(bytes(resource_spans.resource), builder), record.number
        for scope_spans in resource_spans.scope_spans:
            if scope_spans.scope.name != SCOPE:
                raise _Misfit
            found.append((scope_spans.spans, owner))
    for spans, owner in found:
        for span in spans:
            shape = (span.name, *map(type, span.attributes))
            group = shapes.get(shape)
            if group is None:
                group = shapes[shape] = ([], [])
            group[0].append(span)
            group[1].append(owner)


def _add_shape(
    name: str, shape: Sequence[type], spans: Sequence[_PlainSpan], owners: Sequence[_Owner], builder: BatchBuilder
) -> None:
    """Make columns of spans that have the same attributes."""
    columns: list[Sequence[Any] | Lists] = [*zip(*owners, strict=True), *zip(*map(_base, spans), strict=True)]
    for each, attributes in zip(shape, zip(*map(_attributes, spans), strict=True), strict=True):
        kind = SPAN_TYPES[_NAMES[each]]
        values = list(map(_GETTERS[kind], attributes))
        element = _ELEMENTS.get(kind)
        columns.append(Lists.of(values, element) if element else values)
    builder.add_columns(name, [_NAMES[each] for each in shape], columns)


_GETTERS = {kind: attrgetter(f"value.{path}") for kind, (_, path) in _VALUES.items()}


def _read_exactly(record: Record, builder: BatchBuilder) -> None:
    """Read a record span by span."""
    tally = builder.batch.tally
    try:
        decoded = _line_decoder.decode(record.data)
        if decoded.resource_spans is None and not _is_other(decoded, record.data):
            # As a line of a file it is none, but it may be what a back end lets its users download.
            traces = documents.to_otlp(record.data)
            if not traces:
                builder.skip(NOT_OTLP, record.number, "not OTLP (JSON, but without resourceSpans)")
            read([Record(trace, record.number) for trace in traces], builder)
            return
    except DECODE_ERRORS as error:
        _skip_line(record, error, builder)
        return
    if decoded.resource_spans is None:
        tally.foreign += 1
        if decoded.resource_metrics:
            builder.batch.points.extend(read_points(decoded.resource_metrics))
        return
    for resource_spans in decoded.resource_spans:
        for scope_spans in resource_spans.scope_spans or ():
            spans = scope_spans.spans or ()
            if scope_spans.scope is None or scope_spans.scope.name != SCOPE:
                tally.foreign += len(spans)
                builder.batch.foreign.extend(_telling(spans))
                continue
            for raw in spans:
                try:
                    resource = read_resource(bytes(resource_spans.resource), builder)
                    builder.add(_flatten_span(raw, resource), record.number)
                except SpanError as error:
                    builder.skip(BAD_SPAN, record.number, str(error))


def _is_other(line: _Line, data: bytes) -> bool:
    """Whether a line has another signal, or is the empty message."""
    return bool(line.resource_logs or line.resource_metrics or line.resource_profiles) or data.split() == [b"{}"]


def _skip_line(record: Record, error: Exception, builder: BatchBuilder) -> None:
    kind, why = NOT_JSON, f"not JSON ({error})"
    if isinstance(error, msgspec.ValidationError):
        kind, why = NOT_OTLP, f"not OTLP ({error})"
    elif isinstance(error, RecursionError):
        why = "not JSON that can be read (nested too deeply)"
    elif not record.data.endswith(b"\n"):
        why = f"not JSON (the last line is cut off: {error})"
    builder.skip(kind, record.number, shorten(why))


def read_resource(encoded: bytes, builder: BatchBuilder) -> int:
    """Return the index of a resource; each is decoded once.

    Raises:
        SpanError: it is damaged.

    """
    encoded = encoded or b"{}"
    known = builder.known_resource(encoded)
    if known is not None:
        return known
    try:
        return builder.resource(encoded, flatten(_resource_decoder.decode(encoded).attributes))
    except DECODE_ERRORS as error:
        raise SpanError(shorten(f"its resource is not OTLP ({error})")) from error


def _telling(spans: Sequence[msgspec.Raw]) -> list[FlatSpan]:
    """Return the spans of other programs that speak of tokens or cached blocks; what is damaged is nothing of ours."""
    found = []
    for raw in spans:
        encoded = bytes(raw)
        if any(name in encoded for name in TELLING):
            with contextlib.suppress(SpanError):
                found.append(_flatten_span(raw, FOREIGN))
    return found


def _flatten_span(raw: msgspec.Raw, life: int) -> FlatSpan:
    try:
        span = _span_decoder.decode(raw)
    except DECODE_ERRORS as error:
        raise SpanError(shorten(f"a span is not OTLP ({error})")) from error
    ids = span.trace_id, span.span_id, span.parent_span_id
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return checked_span(life, *ids, span.name, *times, flatten(span.attributes))
