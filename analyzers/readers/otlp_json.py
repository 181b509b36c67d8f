"""OTLP JSON lines, as the sidecar and the collector's file exporter write them, to flat spans.

A line is one `TracesData` message of the OTLP file format. Spans are decoded one by one, so that a damaged one costs
itself and not its line, and those of other programs are counted without being decoded.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from analyzers.readers import documents
from analyzers.readers.attributes import shorten
from analyzers.readers.counters import Point, read_points
from analyzers.readers.framing import Record
from analyzers.readers.otlp_values import ABSENT, DECODE_ERRORS, Attribute, Camel, flatten
from analyzers.readers.spans import (
    FOREIGN,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    FindLife,
    FlatSpan,
    check_identifier,
    check_time,
)
from analyzers.readers.tally import BAD_SPAN, NOT_JSON, NOT_OTLP, SpanError, Tally
from otel_cache.package import SCOPE

TELLING = (
    b"gen_ai.usage.", b"llm_d.kv_cache.prefix_match.", b"llm_d.kv_cache.block_keys.", b"llm_d.epp.producer.",
    b"llm_d.epp.picker.", b"vllm.backend_url", b"server.address", b"url.full",
)  # fmt: skip
"""What spans hold that say how many tokens a model was given, what a router saw cached, or whom a request went to."""


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


def read_spans(records: Iterable[Record], find_life: FindLife, tally: Tally) -> Iterator[FlatSpan | Point]:
    """Yield the spans of otel_cache in lines or documents; count what is something else, or cannot be read.

    Spans of other programs that name token usage come too, with the life `FOREIGN`; they count as foreign. So do lines
    of metrics, whose points of vLLM's cache counters come as well.
    """
    resources: dict[bytes, int | SpanError] = {}
    for data, where in records:
        try:
            decoded = _line_decoder.decode(data)
            if decoded.resource_spans is None and not _is_other(decoded, data):
                # As a line of a file it is none, but it may be what a back end lets its users download.
                traces = documents.to_otlp(data)
                if not traces:
                    tally.skip(NOT_OTLP, where, "not OTLP (JSON, but without resourceSpans)")
                for trace in traces:
                    yield from read_spans([Record(trace, where)], find_life, tally)
                continue
        except DECODE_ERRORS as error:
            _skip_line(data, where, error, tally)
            continue
        if decoded.resource_spans is None:
            tally.foreign += 1
            if decoded.resource_metrics:
                yield from read_points(decoded.resource_metrics)
            continue
        for resource_spans in decoded.resource_spans:
            life: int | SpanError | None = None
            for scope_spans in resource_spans.scope_spans or ():
                spans = scope_spans.spans or ()
                if scope_spans.scope is None or scope_spans.scope.name != SCOPE:
                    tally.foreign += len(spans)
                    yield from _usages(spans, where)
                    continue
                if life is None:
                    life = _find_life(resource_spans.resource, resources, find_life)
                for raw in spans:
                    try:
                        if isinstance(life, SpanError):
                            raise life
                        yield _flatten_span(raw, life, where)
                    except SpanError as error:
                        tally.skip(BAD_SPAN, where, str(error))


def _is_other(line: _Line, data: bytes) -> bool:
    """Whether a line has another signal, or is the empty message."""
    return bool(line.resource_logs or line.resource_metrics or line.resource_profiles) or data.split() == [b"{}"]


def _skip_line(line: bytes, where: str, error: Exception, tally: Tally) -> None:
    if isinstance(error, msgspec.ValidationError):
        tally.skip(NOT_OTLP, where, shorten(f"not OTLP ({error})"))
    elif isinstance(error, RecursionError):
        tally.skip(NOT_JSON, where, "not JSON that can be read (nested too deeply)")
    elif not line.endswith(b"\n"):
        tally.skip(NOT_JSON, where, shorten(f"not JSON (the last line is cut off: {error})"))
    else:
        tally.skip(NOT_JSON, where, shorten(f"not JSON ({error})"))


def _find_life(raw: msgspec.Raw, resources: dict[bytes, int | SpanError], find_life: FindLife) -> int | SpanError:
    """Return the handle of the life that a resource names, or why it names none; each resource is looked at once."""
    encoded = bytes(raw) or b"{}"
    life = resources.get(encoded)
    if life is None:
        try:
            life = find_life(flatten(_resource_decoder.decode(encoded).attributes))
        except DECODE_ERRORS as error:
            life = SpanError(shorten(f"its resource is not OTLP ({error})"))
        except SpanError as error:
            life = error
        resources[encoded] = life
    return life


def _usages(spans: Sequence[msgspec.Raw], where: str) -> Iterator[FlatSpan]:
    """Yield the spans of other programs that speak of tokens or cached blocks; what is damaged is nothing of ours."""
    for raw in spans:
        encoded = bytes(raw)
        if any(name in encoded for name in TELLING):
            with contextlib.suppress(SpanError):
                yield _flatten_span(raw, FOREIGN, where)


def _flatten_span(raw: msgspec.Raw, life: int, where: str) -> FlatSpan:
    try:
        span = _span_decoder.decode(raw)
    except DECODE_ERRORS as error:
        raise SpanError(shorten(f"a span is not OTLP ({error})")) from error
    return FlatSpan(
        life,
        check_identifier(span.trace_id, TRACE_ID_BYTES, "trace id"),
        check_identifier(span.span_id, SPAN_ID_BYTES, "span id"),
        check_identifier(span.parent_span_id, SPAN_ID_BYTES, "parent span id") if span.parent_span_id else "",
        span.name or "",
        check_time(span.start_time_unix_nano, "start"),
        check_time(span.end_time_unix_nano, "end"),
        flatten(span.attributes),
        where,
    )
