"""The lines that are written by hand, held against a JSON parser and protobuf's own."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.sidecar import otlp_json
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.otlp_json import JsonLinesWriter, encode_line
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


def test_a_pipe_whose_reader_pauses_gets_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost in a pause is counted, and spoils no other line; it is waited for once, not once a line."""
    monkeypatch.setattr(otlp_json, "PATIENCE_SECONDS", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    span = SpanData(
        "name", Context(bytes(15) + b"\1", bytes(7) + b"\2"), None, 3, 4, {"a": "x" * 700}, ReplicaResource({})
    )
    writer = JsonLinesWriter(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    began = time.monotonic()
    read = b""
    for pause in range(1, 4):
        for _ in range(500):
            writer.write([span])
        assert writer.lost > 0
        assert writer.lost + writer.written == pause * 500
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reader, 1 << 16):
                read += data
    writer.close()
    os.close(reader)

    whole = [line for line in read.split(b"\n") if line + b"\n" == encode_line([span])]
    assert len(whole) == writer.written
    assert time.monotonic() - began < 5
