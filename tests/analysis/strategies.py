"""Random scenarios: layouts, blocks, retention, pools, speculation, overlap and keys in every mixture.

With `features` also what else the lab can do: KV connectors, offloading, images, skipped lookups, resets, aborts.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from lab.cases import EXTERNAL

LAYOUTS = (
    "hybrid", "full", "mamba", "window", "window and full", "three kinds", "three sizes", "multiples", "drafter",
)  # fmt: skip
SIZES = (16, 64, 160, 1600, 3584)
POOLS = (2000, 120, 60)
MULTIPLES = 1600
"""Scheduler block of full attention in blocks of 16, a window in blocks of 64, and Mamba in blocks of 1,600."""


def _groups(layout: str, block: int, window: int, mambas: int) -> list[dict[str, Any]]:
    mamba = {"kind": "mamba", "layers": mambas}
    sliding = {"kind": "sliding_window", "window": window, "layers": 1}
    full = {"kind": "full_attention", "layers": 1}
    if layout == "three sizes":
        mamba, sliding = mamba | {"block_size": 4 * block}, sliding | {"block_size": 2 * block}
        full = full | {"block_size": block}
    if layout == "multiples":
        full, sliding, mamba = (
            full | {"block_size": 16},
            sliding | {"block_size": 64},
            mamba | {"block_size": MULTIPLES},
        )
    return {
        "multiples": [full, sliding | {"window": 128}, mamba],
        "drafter": [full, sliding],
        "hybrid": [mamba, full],
        "full": [full],
        "mamba": [mamba],
        "window": [sliding],
        "window and full": [sliding, full],
        "three kinds": [mamba, sliding, full],
        "three sizes": [mamba, sliding, full],
    }[layout]


@st.composite
def engines(
    draw: st.DrawFn, layouts: Sequence[str], partial: bool, sizes: Sequence[int], pools: Sequence[int]
) -> tuple[dict[str, Any], int]:
    """Return the settings of an engine, and its scheduler block in tokens."""
    layout = draw(st.sampled_from(layouts))
    block = draw(st.sampled_from(sizes))
    if layout == "multiples":
        block = MULTIPLES
    scheduler_block = 4 * block if layout == "three sizes" else block
    window = draw(st.sampled_from([block, 2 * block, 3 * block + 5]))
    attention = layout not in ("mamba", "window")
    speculative = draw(st.sampled_from([None, {"method": "mtp", "num_speculative_tokens": 2}])) if attention else None
    groups = _groups(layout, block, window, draw(st.sampled_from([1, 3])))
    if layout == "drafter" and speculative:
        groups[-1]["draft"] = True
    unit = (
        draw(st.sampled_from([None, block // 4, block // 2])) if partial and layout == "hybrid" and block > 16 else None
    )
    retention = draw(st.sampled_from([0, "default", "dense", scheduler_block, 3 * scheduler_block]))
    budget = draw(st.sampled_from([1, 2, 3, 5])) * scheduler_block + draw(st.sampled_from([0, scheduler_block // 3]))
    return {
        "block_size": block,
        "prefix_match_unit": unit,
        # vLLM on CPUs ends chunks on multiples of 128, whatever the groups' blocks are.
        "split_block_size": draw(st.sampled_from([None, None, None, max(1, block // 4), 2 * block, 16])),
        "prefix_cache_retention_interval": "default" if layout == "full" else retention,
        "max_num_batched_tokens": budget,
        # Small pools evict and preempt; the smallest still holds one prompt.
        "num_gpu_blocks": draw(st.sampled_from([2000, 1200, 900] if layout == "multiples" else pools)),
        "speculative": speculative,
        "groups": groups,
        "max_num_seqs": draw(st.sampled_from([2, 8])),
        "async_scheduling": draw(st.booleans()),
    }, scheduler_block


@st.composite
def prompts(draw: st.DrawFn, block: int) -> list[dict[str, Any]]:
    """Return a prompt that begins like many others, and may go on alone; ends lie on boundaries and beside them."""
    edge = draw(st.sampled_from([-5, -1, 0, 1, 7, block // 2]))
    shared = {"segment": draw(st.sampled_from("ab")), "tokens": max(1, draw(st.integers(0, 7)) * block + edge)}
    if not draw(st.booleans()):
        return [shared]
    own = {"segment": draw(st.sampled_from(["u", "v", "w"])), "tokens": draw(st.integers(1, 2 * block))}
    return [shared, own]


@st.composite
def connectors(draw: st.DrawFn, block: int, attention: bool) -> dict[str, Any]:
    """Return settings of an engine that bring tokens from outside, or none; `attention` where a group has it."""
    kind = draw(st.sampled_from([*[None] * 6, "decode_bench", "own", "own", "offload"]))
    if kind == "own":
        upto = draw(st.sampled_from([0, block, 3 * block + 7, 10**6]))
        only = draw(st.sampled_from(["r1", "r2", "r3", "r"]))
        return {"connector": EXTERNAL | {"extra": {"upto": upto, "only": only}}}
    if kind == "offload":
        blocks = draw(st.sampled_from([50, 300]))
        return {"cpu_offload": {"blocks": blocks, "lazy": draw(st.booleans())}} if attention else {}
    return {"connector": kind}


@st.composite
def oddities(draw: st.DrawFn, request: dict[str, Any]) -> dict[str, Any]:
    """Return what is odd about `request`: mostly nothing."""
    kind = draw(st.sampled_from([*[None] * 8, "image", "skip", "reset", "abort", "stop"]))
    tokens = min(5, sum(part["tokens"] for part in request["prompt"]))
    odd: dict[str | None, dict[str, Any]] = {
        "image": {"items": [{"content": draw(st.sampled_from(["cat", "dog"])), "offset": 0, "tokens": tokens}]},
        "skip": {"skip_prefix_cache": True},
        "reset": {} if "with" in request else {"reset": True},
        "abort": {"abort_after": draw(st.integers(1, 6))},
        "stop": {"stop_after": 1},
    }
    return odd.get(kind, {})


@st.composite
def scenarios(
    draw: st.DrawFn,
    layouts: Sequence[str] = LAYOUTS,
    partial: bool = True,
    sizes: Sequence[int] = SIZES,
    pools: Sequence[int] = POOLS,
    features: bool = False,
) -> dict[str, Any]:
    """Return a scenario on one to three replicas; `partial` hits end inside blocks, which have `sizes` (tokens)."""
    engine, block = draw(engines(layouts, partial, sizes, pools))
    if features:
        engine |= draw(connectors(block, any(group["kind"] == "full_attention" for group in engine["groups"])))
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    requests: list[dict[str, Any]] = []
    for index in range(draw(st.integers(3, 8))):
        longest = block + 3 if block < 200 else 5
        request: dict[str, Any] = {
            "id": f"r{index}",
            "prompt": draw(prompts(block)),
            "output_tokens": draw(st.sampled_from([1, 3, longest])),
            "times": draw(st.sampled_from([1, 1, 2, 3])),
            "replica": draw(st.integers(0, replicas - 1)),
        }
        if requests and draw(st.integers(0, 3)) == 0:
            request["with"] = draw(st.sampled_from([earlier["id"] for earlier in requests]))
        if draw(st.integers(0, 6)) == 0:
            # vLLM's keys do not tell a salt from an adapter of the same name.
            key = draw(st.sampled_from(["cache_salt", "lora"]))
            request[key] = f"{key}-{draw(st.sampled_from('xy'))}"
        if features:
            request |= draw(oddities(request))
        requests.append(request)
    if draw(st.booleans()):
        requests.append(_next_turn(requests[0]))
    return {"engine": engine, "replicas": replicas, "requests": requests}


def _next_turn(first: dict[str, Any]) -> dict[str, Any]:
    """Return a request whose prompt is that of `first`, its answer, and a new question."""
    sent = first["id"] if first["times"] == 1 else f"{first['id']}-0"
    answer = {"segment": f"output:{sent}", "tokens": first["output_tokens"]}
    return {"id": "turn", "prompt": [*first["prompt"], answer, {"segment": "question", "tokens": 50}]}
