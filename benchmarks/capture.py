"""A capture of a million spans, for benchmarks: a workload on the lab, again and again with new ids, one day's worth.

The workload is the trace that `OTEL_CACHE_MOONCAKE` names, or, without it, one made up in the same form. The files are
made once, into `otel-cache/bench` below `XDG_CACHE_HOME`.
"""

import hashlib
import json
import os
import random
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from analyzers.readers import convert
from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.workload import load_workload

TRACE = "OTEL_CACHE_MOONCAKE"
REQUESTS = 6000
ENGINE = """\
engine:
  block_size: 1600
  prefix_cache_retention_interval: 0
  max_num_batched_tokens: 8192
  num_gpu_blocks: 4000
  speculative: {method: mtp, num_speculative_tokens: 2}
  groups:
    - {kind: mamba, layers: 3}
    - {kind: full_attention}
replicas: 4
routing: sticky_prefix
output_tokens: 8
"""
_ID = re.compile(rb'("(?:traceId|spanId|parentSpanId)":")([0-9a-f]{8})')
_REQUEST = re.compile(rb'("key":"vllm.request.id","value":\{"stringValue":")')
_INSTANCE = re.compile(rb'("key":"service.instance.id","value":\{"stringValue":")')
_TIME = re.compile(rb'("(?:startTimeUnixNano|endTimeUnixNano)":")([0-9]+)')
GAP = 1_000_000_000


def folder() -> Path:
    """Return where captures are kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(root) / "otel-cache" / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def capture(spans: int) -> dict[str, Path]:
    """Return files with at least `spans` spans, the same in each: `json`, `protobuf` and `parquet`."""
    key = f"{'mooncake' if os.environ.get(TRACE) else 'made-up'}-{_digest()}-{spans}"
    paths = {
        "json": folder() / f"{key}.jsonl",
        "protobuf": folder() / f"{key}.pb",
        "parquet": folder() / f"{key}.parquet",
    }
    base = _base()
    for form, write in (("json", _write_json), ("protobuf", _write_protobuf), ("parquet", _write_parquet)):
        if not paths[form].exists():
            temporary = paths[form].with_suffix(".tmp")
            write(base, spans, temporary, paths)
            temporary.replace(paths[form])
    return paths


def trace() -> Path:
    """Return the trace that the variable names, or one made up in its form."""
    if TRACE in os.environ:
        return Path(os.environ[TRACE])
    path = folder() / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in _made_up()))
    return path


def _digest() -> str:
    return hashlib.sha256(f"{ENGINE}{REQUESTS}".encode()).hexdigest()[:8]


def _base() -> Path:
    path = folder() / f"{'mooncake' if os.environ.get(TRACE) else 'made-up'}-{_digest()}.base.jsonl"
    if not path.exists():
        engine = folder() / "engine.yaml"
        engine.write_text(ENGINE + f"requests: {REQUESTS}\n")
        temporary = path.with_suffix(".part.jsonl")
        with LabWorker() as lab:
            lab.run(load_workload(trace(), engine), temporary)
        temporary.replace(path)
    return path


def _made_up() -> Iterator[dict[str, object]]:
    """Yield conversations of some turns, all behind one of ten system prompts."""
    chance = random.Random(7)
    fresh = count(1000)
    open_: list[list[int]] = []
    for number in range(REQUESTS):
        if open_ and chance.random() < 0.6:
            ids = open_.pop(chance.randrange(len(open_)))
        else:
            ids = [chance.randrange(10)]
        ids = [*ids, *islice(fresh, chance.randint(1, 8))]
        if len(ids) < 60:
            open_.append(ids)
        length = 512 * len(ids) - chance.randrange(512)
        yield {"timestamp": number, "input_length": length, "output_length": 8, "hash_ids": ids}


def _mask(turn: int) -> int:
    return turn * 0x9E3779B1 & 0xFFFFFFFF


def _write_json(base: Path, spans: int, path: Path, _: dict[str, Path]) -> None:
    lines = base.read_bytes().splitlines(keepends=True)
    in_base = sum(line.count(b'"spanId":"') for line in map(_without_links, lines))
    times = [int(found[2]) for line in lines for found in _TIME.finditer(line)]
    length = max(times) - min(times) + GAP
    with path.open("wb") as file:
        for turn in range(-(-spans // in_base)):
            mask = _mask(turn)
            name = f"t{turn}-".encode()
            for line in lines:
                line = _ID.sub(lambda found: b"%s%08x" % (found[1], int(found[2], 16) ^ mask), line)  # noqa: B023
                line = _TIME.sub(lambda found: b"%s%d" % (found[1], int(found[2]) + turn * length), line)  # noqa: B023
                file.write(_INSTANCE.sub(rb"\1" + name, _REQUEST.sub(rb"\1" + name, line)))


def _without_links(line: bytes) -> bytes:
    return re.sub(rb'"links":\[.*?\],"status"', b'"status"', line)


def _write_protobuf(base: Path, spans: int, path: Path, paths: dict[str, Path]) -> None:
    """Write the lines' spans as messages: each line is parsed once, and gets new ids and times turn by turn."""
    lines = base.read_bytes().splitlines()
    in_base = sum(line.count(b'"spanId":"') for line in map(_without_links, lines))
    times = [int(found[2]) for line in lines for found in _TIME.finditer(line)]
    length = max(times) - min(times) + GAP
    messages = [json_format.ParseDict(_based(json.loads(line)), TracesData()) for line in lines]
    del lines
    with path.open("wb") as file:
        for turn in range(-(-spans // in_base)):
            mask = _mask(turn) ^ (_mask(turn - 1) if turn else 0)
            for message in messages:
                _renew(message, mask, turn, length if turn else 0)
                written = message.SerializeToString()
                file.write(len(written).to_bytes(4) + written)


def _based(value: object) -> object:
    if isinstance(value, list):
        return [_based(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: b64encode(bytes.fromhex(each)).decode() if key in ids else _based(each) for key, each in value.items()}


def _renew(message: TracesData, mask: int, turn: int, later: int) -> None:
    """Give what was made in the turn before new ids and times."""

    def masked(identifier: bytes) -> bytes:
        return (int.from_bytes(identifier[:4]) ^ mask).to_bytes(4) + identifier[4:] if identifier else b""

    def renamed(attributes: Iterable[KeyValue], key: str) -> None:
        for each in attributes:
            if each.key == key:
                old = each.value.string_value
                each.value.string_value = f"t{turn}-{old.split('-', 1)[1] if turn else old}"

    for resource_spans in message.resource_spans:
        renamed(resource_spans.resource.attributes, "service.instance.id")
        for span in resource_spans.scope_spans[0].spans:
            renamed(span.attributes, "vllm.request.id")
            for each in (span, *span.links):
                each.trace_id, each.span_id = masked(each.trace_id), masked(each.span_id)
            span.parent_span_id = masked(span.parent_span_id)
            span.start_time_unix_nano += later
            span.end_time_unix_nano += later


def _write_parquet(base: Path, spans: int, path: Path, paths: dict[str, Path]) -> None:
    convert([paths["json"]], str(path))
