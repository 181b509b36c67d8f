"""One capture of OTLP JSON lines in every form that somebody may keep it in; each writer takes the lines and a folder.

The Protobuf is made by opentelemetry-proto's own classes, the zstd by the standard library's, as in the collector.
"""

import gzip
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from analyzers.readers import convert
from tests.readers.test_jaeger_json import jaeger

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Lines = Sequence[bytes]
Json = dict[str, Any]


def based(value: Any) -> Any:
    """Return OTLP JSON with ids in base64, as Protobuf's own JSON, and so Tempo's, has them."""
    if isinstance(value, list):
        return [based(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: b64encode(bytes.fromhex(each)).decode() if key in ids else based(each) for key, each in value.items()}


def protobuf(line: bytes) -> bytes:
    """Return the message that a line stands for."""
    return json_format.ParseDict(based(json.loads(line)), TracesData()).SerializeToString()


def prefixed(messages: Iterable[bytes]) -> bytes:
    """Return messages, each after its length, as the collector's file exporter writes them."""
    return b"".join(len(each).to_bytes(4) + each for each in messages)


def _one(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "a file"
        path.write_bytes(content)
        return path

    return write


def _rotated(lines: Lines, folder: Path) -> Path:
    """Write a set of the collector's rotation; the name that it is known by is that of the newest."""
    parts = [lines[at::4] for at in range(4)]
    names = [f"spans-2026-11-29T10-0{minute}-00.{minute}23" for minute in range(3)] + ["spans"]
    for name, part in zip(names, parts, strict=True):
        (folder / f"{name}.jsonl").write_bytes(b"".join(part))
    return folder / "spans.jsonl"


def tempo(lines: Lines) -> bytes:
    """Return what Tempo answers for a trace, all on one line."""
    resources = [each for line in lines for each in based(json.loads(line))["resourceSpans"]]
    return json.dumps({"trace": {"resourceSpans": resources}}).encode()


def old_tempo(lines: Lines) -> bytes:
    """Return what Tempo answered before, over many lines."""
    resources = [each for line in lines for each in based(json.loads(line))["resourceSpans"]]
    return json.dumps({"batches": resources}, indent=2).encode()


def _typed(lines: Lines, folder: Path) -> Path:
    """Write what `otel-cache convert` makes of the lines."""
    (folder / "lines").write_bytes(b"".join(lines))
    convert([folder / "lines"], str(folder / "typed"))
    return folder / "typed"


FORMS: dict[str, Callable[[Lines], Callable[[Path], Path]]] = {
    "lines": lambda lines: _one(b"".join(lines)),
    "gzip": lambda lines: _one(gzip.compress(b"".join(lines))),
    "gzip in two members": lambda lines: _one(gzip.compress(lines[0]) + gzip.compress(b"".join(lines[1:]))),
    "zstd": lambda lines: _one(zstd.compress(b"".join(lines))),
    "zstd in frames": lambda lines: _one(b"".join(map(zstd.compress, lines))),
    "zstd in gzip": lambda lines: _one(gzip.compress(zstd.compress(b"".join(lines)))),
    "JSON messages in frames": lambda lines: _one(prefixed(map(zstd.compress, lines))),
    "JSON messages": lambda lines: _one(prefixed(lines)),
    "protobuf": lambda lines: _one(prefixed(map(protobuf, lines))),
    "protobuf, zstd": lambda lines: _one(zstd.compress(prefixed(map(protobuf, lines)))),
    "protobuf in frames": lambda lines: _one(prefixed(zstd.compress(protobuf(line)) for line in lines)),
    "protobuf, gzip": lambda lines: _one(gzip.compress(prefixed(map(protobuf, lines)))),
    "rotated": lambda lines: lambda folder: _rotated(lines, folder),
    "typed Parquet": lambda lines: lambda folder: _typed(lines, folder),
    "a document": lambda lines: _one(json.dumps(
        {"resourceSpans": [each for line in lines for each in json.loads(line)["resourceSpans"]]}, indent=4).encode()),
    "Tempo": lambda lines: _one(tempo(lines)),
    "old Tempo": lambda lines: _one(old_tempo(lines)),
}  # fmt: skip
"""All of these hold everything."""
JAEGER: dict[str, Callable[[Lines], Callable[[Path], Path]]] = {
    "Jaeger": lambda lines: _one(json.dumps({"data": [jaeger(json.loads(line)) for line in lines]}).encode()),
    "Jaeger, over many lines": lambda lines: _one(
        json.dumps({"data": [jaeger(json.loads(line)) for line in lines]}, indent=2).encode()),
}  # fmt: skip
"""Times are whole microseconds there, and the empty array is an empty string."""
