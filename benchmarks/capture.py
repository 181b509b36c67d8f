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
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from google.protobuf import json_format
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


def _digest() -> str:
    return hashlib.sha256(f"{ENGINE}{REQUESTS}".encode()).hexdigest()[:8]


def _base() -> Path:
    path = folder() / f"{'mooncake' if os.environ.get(TRACE) else 'made-up'}-{_digest()}.base.jsonl"
    if not path.exists():
        engine, trace = folder() / "engine.yaml", folder() / "trace.jsonl"
        engine.write_text(ENGINE + f"requests: {REQUESTS}\n")
        if TRACE not in os.environ:
            trace.write_text("".join(json.dumps(each) + "\n" for each in _made_up()))
        temporary = path.with_suffix(".part.jsonl")
        with LabWorker() as lab:
            lab.run(load_workload(Path(os.environ.get(TRACE, trace)), engine), temporary)
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
    def based(value: object) -> object:
        if isinstance(value, list):
            return [based(each) for each in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: b64encode(bytes.fromhex(each)).decode() if key in ids else based(each) for key, each in value.items()
        }

    with paths["json"].open("rb") as lines, path.open("wb") as file:
        for line in lines:
            message = json_format.ParseDict(based(json.loads(line)), TracesData()).SerializeToString()
            file.write(len(message).to_bytes(4) + message)


def _write_parquet(base: Path, spans: int, path: Path, paths: dict[str, Path]) -> None:
    convert([paths["json"]], str(path))
