"""All classes in one run: fleets under each routing, pools too small for the work, keys, overlap and a reset."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Labs
from lab.cases import MTP, request, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed
from analyzers.vllm_lab.routing import Routing, routed
from analyzers.vllm_lab.scenario import Scenario, parse_scenario

pytestmark = pytest.mark.vllm

BLOCK = 64
HYBRID = [{"kind": "mamba", "layers": 2}, {"kind": "sliding_window", "window": 100}, {"kind": "full_attention"}]


def conversations() -> list[dict[str, Any]]:
    """Return what four users of one system prompt send, two of them under keys of their own, twice over.

    Turns go on from the answers, second users arrive while the first are computed, and the cache is cleared once.
    """
    requests = []
    system = ("system", 5 * BLOCK + 40)
    keys: dict[str, dict[str, Any]] = {"c": {"cache_salt": "red"}, "d": {"lora": "blue"}}
    for user in "abcd":
        key, first = keys.get(user, {}), [system, (user, BLOCK + 9)]
        follows = {"with": "a-1", "delay": 1} if user == "b" else {}
        requests.append(request(f"{user}-1", *first, output_tokens=70, **key, **follows))
        second = [*first, (f"output:{user}-1", 70), ("question", 2 * BLOCK)]
        requests.append(request(f"{user}-2", *second, output_tokens=5, **key))
        requests.append(request(f"{user}-3", *second, (f"output:{user}-2", 5), (f"more {user}", 300), **key))
    requests.append(request("clear", system, reset=True))
    requests += [request(f"{user}-again", system, (user, 700), times=3, **keys.get(user, {})) for user in "abcd"]
    return requests


def fleet(requests: list[dict[str, Any]], routing: Routing, replicas: int, **engine: Any) -> Scenario:
    """Return `requests` as `routing` sends them; chunks end off the boundaries, and speculation drops blocks."""
    settings: dict[str, Any] = {
        "block_size": BLOCK,
        "max_num_batched_tokens": 150,
        "prefix_cache_retention_interval": 0,
        "num_gpu_blocks": 48,
        "speculative": MTP,
    }
    whole = parse_scenario(scenario(requests, HYBRID, replicas=replicas, **settings | engine))
    return msgspec.structs.replace(whole, requests=tuple(routed(whole.requests, replicas, routing)))


ALWAYS = {"cold", "key_difference", "tail", "reset", "held_elsewhere", "not_materialized", "shifted_boundary"}


@pytest.mark.parametrize(("routing", "replicas"), [("round_robin", 2), ("sticky_prefix", 3), ("random", 3)])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_fleet(lab: Labs, tmp_path: Path, version: str, routing: Routing, replicas: int) -> None:
    """Every hit is predicted, and every token has its class."""
    lost = analyzed(lab[version], fleet(conversations(), routing, replicas), tmp_path / "s.jsonl").lost
    assert set(lost) >= ALWAYS
    assert {"evicted", "checkpoint_evicted"} & set(lost)
    assert ("speculative_drop" in lost) == (version != "0.33.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_all_of_it_is_given_back(lab: Labs, tmp_path: Path, version: str) -> None:
    """Room for everything, one replica, one request at a time, one key, no reset, no speculation, every state kept.

    What is left is what nobody had sent before, and what lies beyond the last boundary.
    """
    before = fleet(conversations(), "round_robin", 2)
    blamed = {"with", "delay", "cache_salt", "lora", "reset"}
    plain = [{key: value for key, value in each.items() if key not in blamed} for each in conversations()]
    cure: dict[str, Any] = {
        "num_gpu_blocks": 4000,
        "prefix_cache_retention_interval": "dense",
        "max_num_batched_tokens": BLOCK,
        "speculative": None,
    }
    after = analyzed(lab[version], fleet(plain, "round_robin", 1, **cure), tmp_path / "after.jsonl")
    assert set(after.lost) == {"cold", "tail"}
    assert after.prompt_tokens == sum(request.prompt_tokens * request.times for request in before.requests)
