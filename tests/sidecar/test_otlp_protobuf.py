"""The bytes that are written by hand, held against protobuf's own parser and the SDK's own encoder."""

import math
from typing import Any

from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.records import Batch
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.ids import Context, parse_tracestate
from otel_cache.sidecar.otlp_protobuf import encode_spans
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, SpanLink, to_readable

from .support import hello, whole_request

# Anything but lone surrogates, which no UTF-8 has.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["x" * 127, "é" * 64, "y" * 20_000]
)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([0, 1, -1, 127, 128, 16383, 16384, 1 << 62])
SCALARS = TEXTS, INTEGERS, st.booleans(), st.floats()
VALUES = st.one_of(*SCALARS, *(st.lists(each, max_size=12) for each in SCALARS))
ATTRIBUTES = st.dictionaries(TEXTS.filter(bool), VALUES, max_size=5)
CONTEXTS = st.builds(Context, st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.none() | st.booleans())
TIMES = st.integers(0, (1 << 64) - 1)
STATES = st.sampled_from(["", "vendor=1", "a=b,tenant@system=x:y z", "rubbish", "k=" + "v" * 256]).map(parse_tracestate)
RESOURCES = [ReplicaResource({"service.name": "vllm", "ids": (1, 2)}), ReplicaResource({"name": "é" * 200})]
SPANS = st.builds(
    SpanData, TEXTS, CONTEXTS, st.none() | CONTEXTS, TIMES, TIMES, ATTRIBUTES, st.sampled_from(RESOURCES),
    st.lists(st.builds(SpanLink, CONTEXTS, ATTRIBUTES) | CONTEXTS.map(SpanLink), max_size=3), st.booleans(),
    STATES,
)  # fmt: skip


def parse(encoded: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(encoded)


def plain(message: Message) -> Any:
    """Return a message as nested lists, for a NaN in it equals nothing, itself included."""
    if not isinstance(message, Message):
        return repr(message) if isinstance(message, float) and math.isnan(message) else message
    return [
        (field.name, [plain(each) for each in value] if field.is_repeated else plain(value))
        for field, value in message.ListFields()
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(SPANS, max_size=5))
@example([])
def test_what_is_written_is_what_the_sdk_writes(spans: list[SpanData]) -> None:
    expected = sdk_encode_spans([to_readable(span) for span in spans])
    assert plain(parse(encode_spans(spans))) == plain(expected)


def test_the_spans_of_a_request_are_what_the_sdk_writes() -> None:
    spans = ProcessBuilder(hello()).add(Batch(0, whole_request()))
    assert plain(parse(encode_spans(spans))) == plain(sdk_encode_spans([to_readable(span) for span in spans]))
    assert parse(encode_spans(spans)).SerializeToString() == encode_spans(spans)


@given(st.integers(min_value=1 << 63) | st.integers(max_value=-(1 << 63) - 1))
def test_integers_that_otlp_cannot_hold_are_left_out(value: int) -> None:
    resource = ReplicaResource({})
    span = SpanData("name", Context(1, 1), None, 1, 2, {"a": value, "b": [1, value], "c": 7}, resource)
    (written,) = parse(encode_spans([span])).resource_spans[0].scope_spans[0].spans
    assert [attribute.key for attribute in written.attributes] == ["c"]


def test_bytes_in_the_environment_that_are_no_text_are_replaced() -> None:
    span = SpanData("name", Context(1, 1), None, 1, 2, {}, ReplicaResource({"place": "x\udcff"}))
    (attribute,) = parse(encode_spans([span])).resource_spans[0].resource.attributes
    assert attribute.value.string_value == "x?"


def test_a_resource_is_written_once() -> None:
    resource = ReplicaResource({"service.name": "vllm"})
    span = SpanData("name", Context(1, 1), None, 1, 2, {}, resource)
    first = encode_spans([span, span])
    assert resource.protobuf is not None
    assert encode_spans([span, span]) == first
    assert len(parse(first).resource_spans) == 1
