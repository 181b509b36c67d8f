"""The settings that a version of vLLM makes of an engine's: what its resource would say, had it been started."""

import re
from math import gcd, lcm
from typing import Any

from analyzers.settings import Group, Settings
from analyzers.vllm_lab.scenario import Engine, parse_scenario
from analyzers.vllm_lab.scenario import Group as AskedGroup
from otel_cache.errors import ScenarioError, UsageError
from otel_cache.package import TESTED_VLLM
from otel_cache.semconv import names

KNOWN = (0, 26)
"""The oldest version whose rules are known; newer ones than were tested are taken for the newest of those."""
NEWEST = TESTED_VLLM[-1]
DENSE_BY_DEFAULT = (0, 29)
"""Below this version every state is kept unless told otherwise; in it, with speculation."""
BLOCK_BEYOND = (0, 32)
"""From this version on a group that drops a block may look one block past the longest hit."""
SHARED_PREFIX = (0, 31)
"""From this version on Mamba groups keep a state where a shared prefix ends, if they are told to."""
LOOKAHEAD = (0, 33)
"""From this version on keys cover what the drafter reads beyond a block, so that none is dropped."""
LOOKAHEAD_TOKENS = 1
"""What a drafter of one module reads beyond a block."""
FINE_GRAINED = (names.KIND_MAMBA, names.KIND_FULL_ATTENTION)


def configured(engine: Engine, version: str) -> Settings:
    """Return the settings of `engine` on the vLLM of this `version`, such as 0.32.0."""
    asked = engine.group_list()
    sizes = engine.block_sizes()
    eagle = engine.speculative is not None and engine.speculative.method == "mtp"
    at = version_tuple(version)
    flagged = _flagged(asked) if eagle and at < LOOKAHEAD else set()
    scheduler_block = lcm(*sizes)
    several = len(asked) > 1
    hash_block = (engine.prefix_match_unit or gcd(*sizes)) if several else scheduler_block
    groups = tuple(
        Group(
            index=index,
            kind=group.kind,
            block_size=size,
            window=group.window or 0,
            flagged=index in flagged,
            drops=index in flagged and group.kind != names.KIND_MAMBA,
            fine_grained=group.kind in FINE_GRAINED,
        )
        for index, (group, size) in enumerate(zip(asked, sizes, strict=True))
    )
    partial = several and _partial(groups, hash_block)
    return Settings(
        groups=groups,
        order=_order(groups),
        alignment=hash_block if partial else scheduler_block,
        hash_block=hash_block,
        scheduler_block=scheduler_block,
        lookahead=LOOKAHEAD_TOKENS if eagle and at >= LOOKAHEAD else 0,
        partial_hits=partial,
        block_beyond=at >= BLOCK_BEYOND,
        prefix_caching=True,
        retention=_retention(engine, at),
        version=version,
        speculative_method=engine.speculative.method if engine.speculative else "",
        max_batched_tokens=engine.max_num_batched_tokens,
        fingerprint_key_id="",
        speculative_tokens=engine.speculative.num_speculative_tokens if engine.speculative else 0,
        split_block=engine.split_block_size or min(sizes),
        num_blocks=engine.num_gpu_blocks,
        shared_prefix_checkpoint=(
            engine.enable_mamba_shared_prefix_checkpoint and eagle and partial and at >= SHARED_PREFIX
        ),
    )


def checked(data: dict[str, Any], source: str, tokens: int) -> Engine:
    """Return the engine of plain data; it has to take a prompt of `tokens`.

    Raises:
        ScenarioError: it says something impossible, or something that is not known here; names the place.

    """
    part = {"segment": "prompt", "tokens": tokens}
    request = {"id": "prompt", "prompt": [part], "output_tokens": 1}
    data = {**data, "max_model_len": max(tokens + 1, data.get("max_model_len") or 0)}
    engine = parse_scenario({"engine": data, "requests": [request]}, source).engine
    for index, group in enumerate(engine.groups):
        if group.replay:
            raise ScenarioError(
                f"{source}: engine.groups[{index}].replay: what a window that is computed again leaves is not known"
            )
    return engine


def version_tuple(version: str) -> tuple[int, int]:
    """Return major and minor number of a version.

    Raises:
        UsageError: it does not read as one, or is older than any whose rules are known.

    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise UsageError(f"{version!r} is no version of vLLM; give one such as 0.32 or 0.28.0")
    pair = int(found[1]), int(found[2])
    if pair < KNOWN:
        raise UsageError(f"vLLM {version}: its rules are not known; the oldest are those of {KNOWN[0]}.{KNOWN[1]}")
    return pair


def version_note(version: str) -> str:
    """Return a note where the rules of `version` are not known and others are taken; "" where they are."""
    if not version or version_tuple(version) <= version_tuple(NEWEST):
        return ""
    return f"the rules of vLLM {version} are not known; those of {NEWEST}, the newest that is, are taken"


def _flagged(groups: list[AskedGroup]) -> set[int]:
    """Return the groups that the drafter's layers are in: the marked ones, else the last of full attention.

    Where there is one group only it is that, whatever its kind.
    """
    marked = {index for index, group in enumerate(groups) if group.draft}
    full = [index for index, group in enumerate(groups) if group.kind == names.KIND_FULL_ATTENTION]
    return marked or set(full[-1:]) or (set(range(len(groups))) if len(groups) == 1 else set())


def _order(groups: tuple[Group, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the groups that are looked up together, full attention first."""
    together: dict[tuple[object, ...], list[int]] = {}
    for group in groups:
        key = (group.kind, group.block_size, group.window, group.flagged)
        together.setdefault(key, []).append(group.index)
    ordered = sorted(together.values(), key=lambda ids: (not groups[ids[0]].dense, ids))
    return tuple(tuple(ids) for ids in ordered)


def _partial(groups: tuple[Group, ...], hash_block: int) -> bool:
    """Whether hits may end inside blocks: a Mamba block is larger than a hash block, and no group stands against it."""
    return any(group.kind == names.KIND_MAMBA and group.block_size > hash_block for group in groups) and all(
        group.fine_grained or group.block_size == hash_block for group in groups
    )


def _retention(engine: Engine, at: tuple[int, int]) -> str:
    interval = engine.prefix_cache_retention_interval
    if interval != "default":
        return str(interval)
    speculates = engine.speculative is not None
    dense = at < DENSE_BY_DEFAULT or (at == DENSE_BY_DEFAULT and speculates)
    return names.RETENTION_DENSE if dense else "0"
