"""A capture of a million spans, for benchmarks: a workload on the lab, again and again with new ids, one day's worth.

The workload is the trace that `OTEL_CACHE_MOONCAKE` names, or, without it, one made up in the same form. The files are
made once, into `otel-cache/bench` below `XDG_CACHE_HOME`.
"""

import hashlib
import inspect
import json
import os
import random
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from analyzers.readers import convert, typed_parquet, typed_writer
from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.workload import load_workload

TRACE = "OTEL_CACHE_MOONCAKE"
REQUESTS = 6000
SHARED_BLOCKS = 4
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


def capture(spans: int, forms: Sequence[str] = ("json", "protobuf", "parquet", "shared")) -> dict[str, Path]:
    """Return files with at least `spans` spans: `json`, `protobuf` and `parquet`, with the same spans in each.

    `shared` is JSON of the same workload, every request of which begins with the same 2,048 tokens. Only those of
    `forms` are made.
    """
    base, begun = _base(shared=False), _base(shared="shared" in forms)
    paths = {
        form: base.with_name(f"{base.name.split('.')[0]}-{spans}{ending}")
        for form, ending in (("json", ".jsonl"), ("protobuf", ".pb"), ("parquet", ".parquet"))
    }
    # As this version writes it.
    version = hashlib.sha256(
        repr((typed_parquet.SCHEMA, typed_parquet.ROW_GROUP, inspect.getsource(typed_writer))).encode()
    ).hexdigest()[:8]
    paths["parquet"] = paths["parquet"].with_suffix(f".{version}.parquet")
    paths["shared"] = begun.with_name(f"{begun.name.split('.')[0]}-{spans}.jsonl")
    makers = {
        "json": lambda path: _write_json(base, spans, path),
        "protobuf": lambda path: _write_protobuf(base, spans, path),
        "parquet": lambda path: convert([paths["json"]], str(path)),
        "shared": lambda path: _write_json(begun, spans, path),
    }
    for form in forms:
        write = makers[form]
        if not paths[form].exists():
            temporary = paths[form].with_suffix(".tmp")
            write(temporary)
            temporary.replace(paths[form])
    return {form: paths[form] for form in forms}


def trace() -> Path:
    """Return the trace that the variable names, or one made up in its form."""
    if TRACE in os.environ:
        return Path(os.environ[TRACE])
    path = folder() / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in _made_up()))
    return path


def _digest() -> str:
    return hashlib.sha256(f"{ENGINE}{REQUESTS}".encode()).hexdigest()[:8]


def _base(shared: bool) -> Path:
    kind = f"{'mooncake' if os.environ.get(TRACE) else 'made-up'}{'-shared' if shared else ''}"
    path = folder() / f"{kind}-{_digest()}.base.jsonl"
    if not path.exists():
        engine = folder() / "engine.yaml"
        engine.write_text(ENGINE + f"requests: {REQUESTS}\n")
        temporary = path.with_suffix(".part.jsonl")
        with LabWorker() as lab:
            lab.run(load_workload(_begun_alike(trace()) if shared else trace(), engine), temporary)
        temporary.replace(path)
    return path


def _begun_alike(trace: Path) -> Path:
    """Return the trace with the same blocks of 512 tokens in front of every prompt."""
    requests = [json.loads(line) for line in trace.read_text().splitlines() if line]
    first = 1 + max(max(each["hash_ids"]) for each in requests)
    path = folder() / "shared.jsonl"
    with path.open("w") as file:
        for each in requests:
            each["hash_ids"] = [*range(first, first + SHARED_BLOCKS), *each["hash_ids"]]
            each["input_length"] += SHARED_BLOCKS * 512
            file.write(json.dumps(each) + "\n")
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


def _write_json(base: Path, spans: int, path: Path) -> None:
    """Write the lines again and again; what differs from turn to turn is as long in each, and put in its place."""
    text = _REQUEST.sub(rb"\1t0000-", _INSTANCE.sub(rb"\1t0000-", base.read_bytes()))
    in_base = _without_links(text).count(b'"spanId":"')
    ids = [(found.start(2), int(found[2], 16)) for found in _ID.finditer(text)]
    times = [(found.start(2), int(found[2])) for found in _TIME.finditer(text)]
    names = [found.end() + 1 for pattern in (_REQUEST, _INSTANCE) for found in pattern.finditer(text)]
    id_at, time_at = (np.array([at for at, _ in each])[:, None] for each in (ids, times))
    name_at = np.array(names)[:, None] + np.arange(4)
    id_values, time_values = (np.array([value for _, value in each]) for each in (ids, times))
    length = time_values.max() - time_values.min() + GAP
    data = np.frombuffer(bytearray(text), np.uint8)
    with path.open("wb") as file:
        for turn in range(-(-spans // in_base)):
            written = (id_values ^ _mask(turn)).astype(">u4").tobytes().hex().encode()
            data[id_at + np.arange(8)] = np.frombuffer(written, np.uint8).reshape(-1, 8)
            written = b"".join(b"%019d" % time for time in (time_values + turn * length).tolist())
            data[time_at + np.arange(19)] = np.frombuffer(written, np.uint8).reshape(-1, 19)
            data[name_at] = np.frombuffer(b"%04d" % turn, np.uint8)
            file.write(data.tobytes())


def _without_links(line: bytes) -> bytes:
    return re.sub(rb'"links":\[.*?\],"status"', b'"status"', line)


def _write_protobuf(base: Path, spans: int, path: Path) -> None:
    """Write the lines as messages; where what differs from turn to turn stands is seen by changing it."""
    text = _REQUEST.sub(rb"\1t0000-", _INSTANCE.sub(rb"\1t0000-", base.read_bytes()))
    in_base = _without_links(text).count(b'"spanId":"')
    messages = [json_format.ParseDict(_based(json.loads(line)), TracesData()) for line in text.splitlines()]
    data = _prefixed(messages)
    for message in messages:
        _rename(message)
    renamed = _prefixed(messages)
    for message in messages:
        _flip_times(message)
    id_at, name_at = (np.flatnonzero(data ^ renamed == change).reshape(-1, 4) for change in (0xFF, 1))
    time_at = np.flatnonzero(renamed ^ _prefixed(messages)).reshape(-1, 8)
    ids, times = data[id_at].view(">u4"), data[time_at].view("<u8")
    length = times.max() - times.min() + np.uint64(GAP)
    with path.open("wb") as file:
        for turn in range(-(-spans // in_base)):
            data[id_at] = (ids ^ np.uint32(_mask(turn))).astype(">u4").view(np.uint8)
            data[time_at] = (times + np.uint64(turn) * length).astype("<u8").view(np.uint8)
            data[name_at] = np.frombuffer(b"%04d" % turn, np.uint8)
            file.write(data.tobytes())


def _prefixed(messages: Iterable[TracesData]) -> np.ndarray:
    written = (message.SerializeToString() for message in messages)
    return np.frombuffer(bytearray(b"".join(len(each).to_bytes(4) + each for each in written)), np.uint8)


def _based(value: object) -> object:
    if isinstance(value, list):
        return [_based(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: b64encode(bytes.fromhex(each)).decode() if key in ids else _based(each) for key, each in value.items()}


def _rename(message: TracesData) -> None:
    """Change every bit of what differs in the ids, and the number in the names."""

    def flipped(identifier: bytes) -> bytes:
        return bytes(0xFF ^ each for each in identifier[:4]) + identifier[4:]

    for resource_spans in message.resource_spans:
        lists = [resource_spans.resource.attributes]
        for span in resource_spans.scope_spans[0].spans:
            lists.append(span.attributes)
            for each in (span, *span.links):
                each.trace_id, each.span_id = flipped(each.trace_id), flipped(each.span_id)
            span.parent_span_id = flipped(span.parent_span_id)
        for each in chain.from_iterable(lists):
            if each.key in ("service.instance.id", "vllm.request.id"):
                each.value.string_value = each.value.string_value.replace("t0000-", "t1111-", 1)


def _flip_times(message: TracesData) -> None:
    for resource_spans in message.resource_spans:
        for span in resource_spans.scope_spans[0].spans:
            span.start_time_unix_nano ^= (1 << 64) - 1
            span.end_time_unix_nano ^= (1 << 64) - 1
