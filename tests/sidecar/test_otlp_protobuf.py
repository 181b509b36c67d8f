"""The bytes that are written by hand, held against protobuf's own parser and the SDK's own encoder."""

import math
from typing import Any

from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.records import Batch, Chunk, Executed, Record, Replica, Step, StepDone
from otel_cache.semconv import names
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.ids import Context, new_root, parse_tracestate
from otel_cache.sidecar.otlp_protobuf import encode_request, encode_span, encode_spans, split
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import Shape, SpanData, SpanLink, to_readable

from .support import hello, whole_request

# Anything but lone surrogates, which no UTF-8 has.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["x" * 127, "é" * 64, "y" * 20_000]
)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([0, 1, -1, 127, 128, 16383, 16384, 1 << 62])
SCALARS = TEXTS, INTEGERS, st.booleans(), st.floats()
VALUES = st.one_of(*SCALARS, *(st.lists(each, max_size=12) for each in SCALARS))
ATTRIBUTES = st.dictionaries(TEXTS.filter(bool), VALUES, max_size=5)
TRACE_IDS, SPAN_IDS = (st.binary(min_size=size, max_size=size).filter(any) for size in (16, 8))
CONTEXTS = st.builds(Context, TRACE_IDS, SPAN_IDS, st.none() | st.booleans())
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


COUNTS = st.integers(0, (1 << 63) - 1) | st.sampled_from([0, 127, 128, 255, 256, 16383, 16384, 1 << 21, 1 << 28])
NAMED = st.binary(min_size=24, max_size=24) | st.just(b"")
STEPS = st.builds(
    Step, sequence=st.just(0), replica=st.just(0), index=COUNTS, start=COUNTS, end=COUNTS, running=COUNTS,
    waiting=COUNTS, scheduled=st.integers(1, 1 << 40), prefill_tokens=COUNTS, decode_tokens=COUNTS,
    chunks=st.lists(st.builds(Chunk, st.sampled_from("abc"), COUNTS, COUNTS, st.booleans()), max_size=3),
    admitted=st.just({}), finished=st.lists(st.sampled_from("abc"), max_size=2),
    preempted=st.lists(st.sampled_from("abc"), max_size=2), usage=st.floats(0, 1), owners=st.just({}), context=NAMED,
)  # fmt: skip
DONE = st.builds(StepDone, st.just(0), st.just(0), st.just(0), COUNTS, COUNTS)
RUNS = st.builds(Executed, st.just(0), st.integers(1, 3), COUNTS, NAMED, COUNTS, COUNTS)
RANKS = st.sampled_from([Replica(0, 1, 0, {names.WORKER_RANK: 3}), Replica(0, 2, 0, {names.WORKER_RANK: True})])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(STEPS, st.none() | DONE) | RUNS | RANKS, max_size=6), st.integers(0, 1 << 40))
def test_steps_are_what_the_sdk_writes(happened: list[Any], first: int) -> None:
    records: list[Record] = []
    for each in happened:
        if isinstance(each, tuple):
            step, done = each
            records += [step] if done is None else [step, replace(done, index=step.index)]
        else:
            records.append(each)
    builder = ProcessBuilder(replace(hello(), acknowledged=first))
    numbered = [replace(record, sequence=first + number) for number, record in enumerate(records)]
    spans = builder.add(Batch(0, numbered)) + builder.close()
    assert not builder.failed
    assert plain(parse(encode_spans(spans))) == plain(sdk_encode_spans([to_readable(span) for span in spans]))
    shapes: dict[Shape | None, set[tuple[Any, ...]]] = {}
    for span in spans:
        shapes.setdefault(span.shape, set()).add((*span.attributes, *map(type, span.attributes.values())))
    assert all(len(found) == 1 for shape, found in shapes.items() if shape is not None)


@settings(max_examples=50, deadline=None)
@given(st.lists(SPANS, max_size=6), st.integers(1, 2000))
def test_parts_of_a_request_have_all_its_spans(spans: list[SpanData], limit: int) -> None:
    by_resource: dict[ReplicaResource, list[bytes]] = {}
    for span in spans:
        by_resource.setdefault(span.resource, []).append(encode_span(span))
    parts = list(split(by_resource, limit))
    for part in parts:
        sizes = [len(span) for encoded in part.values() for span in encoded]
        assert sum(sizes) <= limit or len(sizes) == 1
    assert {
        resource: [span for part in parts for span in part.get(resource, ())] for resource in by_resource
    } == by_resource
    requests = [parse(encode_request(part)) for part in parts]
    count = sum(len(scope.spans) for each in requests for group in each.resource_spans for scope in group.scope_spans)
    assert count == len(spans)


def test_equal_values_of_other_types_are_not_the_same() -> None:
    for value in ([1, 2], [True, False], [1.0, 2.0], ["1", "2"], [1], [True], [1.0], ["1"], 1, True, 1.0, "1"):
        span = SpanData("name", new_root(), None, 1, 2, {"same": value}, RESOURCES[0])
        assert plain(parse(encode_spans([span]))) == plain(sdk_encode_spans([to_readable(span)]))


def test_the_spans_of_a_request_are_what_the_sdk_writes() -> None:
    spans = ProcessBuilder(hello()).add(Batch(0, whole_request()))
    assert plain(parse(encode_spans(spans))) == plain(sdk_encode_spans([to_readable(span) for span in spans]))
    assert parse(encode_spans(spans)).SerializeToString() == encode_spans(spans)


@given(st.integers(min_value=1 << 63) | st.integers(max_value=-(1 << 63) - 1))
def test_integers_that_otlp_cannot_hold_are_left_out(value: int) -> None:
    resource = ReplicaResource({})
    span = SpanData("name", new_root(), None, 1, 2, {"a": value, "b": [1, value], "c": 7}, resource)
    (written,) = parse(encode_spans([span])).resource_spans[0].scope_spans[0].spans
    assert [attribute.key for attribute in written.attributes] == ["c"]


def test_bytes_in_the_environment_that_are_no_text_are_replaced() -> None:
    span = SpanData("name", new_root(), None, 1, 2, {}, ReplicaResource({"place": "x\udcff"}))
    (attribute,) = parse(encode_spans([span])).resource_spans[0].resource.attributes
    assert attribute.value.string_value == "x?"


def test_a_resource_is_written_once() -> None:
    resource = ReplicaResource({"service.name": "vllm"})
    span = SpanData("name", new_root(), None, 1, 2, {}, resource)
    first = encode_spans([span, span])
    assert resource.protobuf is not None
    assert encode_spans([span, span]) == first
    assert len(parse(first).resource_spans) == 1
