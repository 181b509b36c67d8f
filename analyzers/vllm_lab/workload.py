"""Workloads of others on an engine of one's own: `otel-cache lab run WORKLOAD --engine ENGINE.yaml`.

A workload is a scenario, of which the requests are taken, or a file of JSON lines in Mooncake's format: `timestamp`
(ms), `input_length` and `output_length` (tokens), `hash_ids`, one id per 512 tokens of prompt; equal leading ids mean
an equal prefix. Its requests are sent one after the other, in the order of the file.

    engine:                  # as in a scenario
      block_size: 512
      groups: [{kind: full_attention}]
    replicas: 4
    routing: round_robin     # sticky_prefix, sticky_conversation, random
    output_tokens: 1         # of every request; null: what the workload says
    requests: 1000           # the first so many; null: all
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from analyzers.vllm_lab.checks import check_scenario
from analyzers.vllm_lab.keys import check_keys, wrong_value
from analyzers.vllm_lab.routing import Routing, routed
from analyzers.vllm_lab.scenario import (
    Count,
    Engine,
    Few,
    LabRequest,
    Part,
    Positive,
    Scenario,
    load_scenario,
    load_yaml,
    parse_scenario,
)
from analyzers.vllm_lab.tokens import NUMBERED
from otel_cache.errors import ScenarioError

TOKENS_PER_ID = 512


class EngineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a workload is run on; without `replicas` or `routing` one replica, or those of a capture."""

    engine: Engine
    replicas: Few | None = None
    routing: Routing | None = None
    output_tokens: Positive | None = None
    requests: Positive | None = None


class _Line(msgspec.Struct):
    """A line of a Mooncake trace; keys beside these are passed over."""

    input_length: Positive
    hash_ids: list[Count]
    output_length: Count = 1
    timestamp: Annotated[float, msgspec.Meta(ge=0)] = 0


_line_decoder = msgspec.json.Decoder(_Line)


def load_engine(path: Path) -> EngineFile:
    """Read an engine file; of a scenario its engine, and its replicas where it names them.

    Raises:
        ScenarioError: it is not there, is not YAML, or says something impossible; names the place.

    """
    data = load_yaml(path, "an engine file")
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: an engine file is a mapping with the key engine")
    if isinstance(data.get("requests"), list):
        scenario = parse_scenario(data, str(path))
        return EngineFile(scenario.engine, scenario.replicas if "replicas" in data else None)
    check_keys(data, EngineFile, str(path))
    try:
        return msgspec.convert(data, EngineFile)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: {wrong_value(error, EngineFile)}") from error


def engine_data(path: Path) -> dict[str, Any]:
    """Return the engine of an engine file or a scenario as plain data, unchecked.

    Raises:
        ScenarioError: the file is not there, is not YAML, or has no engine.

    """
    data = load_yaml(path, "an engine file")
    engine = data.get("engine") if isinstance(data, dict) else None
    if not isinstance(engine, dict):
        raise ScenarioError(f"{path}: an engine file is a mapping with the key engine")
    return dict(engine)


def load_workload(path: Path, engine: Path | None) -> Scenario:
    """Return what `path` holds, a scenario or a Mooncake trace, on the engine of the file `engine`.

    Raises:
        ScenarioError: either says something impossible, or a trace has no engine; names the place.

    """
    trace = path.suffix in (".jsonl", ".ndjson")
    if engine is None:
        if trace:
            raise ScenarioError(f"{path}: a trace says nothing of the engine; name one with --engine ENGINE.yaml")
        return load_scenario(path)
    file = load_engine(engine)
    requests = list(_read_trace(path) if trace else load_scenario(path).requests)[: file.requests]
    if file.output_tokens is not None:
        requests = [msgspec.structs.replace(request, output_tokens=file.output_tokens) for request in requests]
    replicas, routing = file.replicas or 1, file.routing or "round_robin"
    scenario = Scenario(file.engine, tuple(routed(requests, replicas, routing)), replicas)
    check_scenario(scenario, f"{path} on {engine}")
    return scenario


def _read_trace(path: Path) -> list[LabRequest]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error})") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_request(_line_decoder.decode(line), f"r{number}"))
            except (msgspec.MsgspecError, ValueError) as error:
                raise ScenarioError(f"{path} line {number}: not a request of a Mooncake trace ({error})") from error
    if not found:
        raise ScenarioError(f"{path}: holds no request")
    return found


def _request(line: _Line, name: str) -> LabRequest:
    needed = -(-line.input_length // TOKENS_PER_ID)
    if len(line.hash_ids) != needed:
        raise ValueError(
            f"{line.input_length} tokens need {needed} ids of {TOKENS_PER_ID} tokens each, it has {len(line.hash_ids)}"
        )
    last = line.input_length - TOKENS_PER_ID * (needed - 1)
    lengths = [TOKENS_PER_ID] * (needed - 1) + [last]
    parts: Any = [Part(f"{NUMBERED}{i}", tokens) for i, tokens in zip(line.hash_ids, lengths, strict=True)]
    return LabRequest(id=name, prompt=tuple(parts), output_tokens=max(1, line.output_length))
