"""The lines that are written by hand, held against a JSON parser and protobuf's own."""

import json
from typing import Any

from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.otlp_json import encode_line
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData, to_readable

from .support import rewrite_ids
from .test_otlp_protobuf import SPANS, plain


@settings(max_examples=100, deadline=None)
@given(st.lists(SPANS, max_size=4))
def test_a_line_says_what_the_sdk_says(spans: list[SpanData]) -> None:
    line = encode_line(spans)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    parsed = ParseDict(rewrite_ids(json.loads(line)), ExportTraceServiceRequest())
    assert plain(parsed) == plain(sdk_encode_spans([to_readable(span) for span in spans]))


def test_numbers_and_text_are_as_the_file_format_has_them() -> None:
    attributes: dict[str, Any] = {"a": 1 << 60, "b": 1.5, "c": 'é\n"', "d": [True], "e": [], "f": float("nan")}
    span = SpanData(
        "name",
        Context(bytes(15) + b"\1", bytes(7) + b"\2"),
        None,
        3,
        4,
        attributes,
        ReplicaResource({"place": "x\udcff"}),
    )
    (group,) = json.loads(encode_line([span]))["resourceSpans"]
    assert group["resource"] == {"attributes": [{"key": "place", "value": {"stringValue": "x?"}}]}
    (written,) = group["scopeSpans"][0]["spans"]
    assert (written["traceId"], written["spanId"]) == ("0" * 31 + "1", "0" * 15 + "2")
    assert (written["startTimeUnixNano"], written["endTimeUnixNano"]) == ("3", "4")
    assert [attribute["value"] for attribute in written["attributes"]] == [
        {"intValue": str(1 << 60)}, {"doubleValue": 1.5}, {"stringValue": "é\n\""},
        {"arrayValue": {"values": [{"boolValue": True}]}}, {"arrayValue": {"values": []}}, {"doubleValue": "NaN"},
    ]  # fmt: skip
