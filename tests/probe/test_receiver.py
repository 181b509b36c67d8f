"""OTLP that an exporter sends to the probe is read like a file of the sidecar."""

import base64
import json
import socket
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from analyzers.probe.receiver import Receiver
from analyzers.readers import open_capture
from otel_cache.errors import UsageError

EXAMPLE = files("analyzers") / "examples" / "model_case.jsonl"


def test_what_is_sent_is_what_is_read(tmp_path: Path) -> None:
    """The capture that ships, sent line by line by OpenTelemetry's own stub: the same frames."""
    file = tmp_path / "spans"
    receiver = Receiver(0, file)
    try:
        with grpc.insecure_channel(f"localhost:{receiver.port}") as channel:
            stub = TraceServiceStub(channel)
            for line in EXAMPLE.read_text().splitlines():
                request = ParseDict(_base64_ids(json.loads(line)), ExportTraceServiceRequest())
                assert not stub.Export(request, timeout=30).partial_success.rejected_spans
    finally:
        receiver.close()
    received, direct = open_capture([file]), open_capture([str(EXAMPLE)])
    assert received.spans == direct.spans > 0
    for frame in ("lookups", "groups", "stores", "evicts", "steps", "requests"):
        assert getattr(received, frame).equals(getattr(direct, frame)), frame


def _base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_base64_ids(each) for each in value]
    if isinstance(value, dict):
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(each)).decode() if key in ids else _base64_ids(each)
            for key, each in value.items()
        }
    return value


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """Another process listens on it."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"--otlp-port {port}: cannot be listened on"):
            Receiver(port, tmp_path / "spans")
