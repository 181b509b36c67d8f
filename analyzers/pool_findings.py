"""Findings on block pools: a drafter's share of one, and a group whose allocations push the others' blocks out."""

from collections.abc import Sequence

from analyzers.model import Capacity, Finding, GroupCapacity
from analyzers.wording import number
from otel_cache.semconv import names

DRAFTER_SHARE = 0.5
"""A drafter's group that takes more of the pool than this is worth a word."""
EVICTING_SHARE = 0.5
"""A group that makes more of the evictions than this is worth a word."""

RULES = ("drafter-share", "evicting-group")


def pool_findings(capacity: Sequence[Capacity]) -> list[Finding]:
    """Return what there is to say of each pool that groups share."""
    shared = [pool for pool in capacity if len(pool.groups) > 1]
    return [finding for pool in shared for finding in (*_drafter(pool), *_evicting(pool))]


def _drafter(pool: Capacity) -> list[Finding]:
    group = max((group for group in pool.groups if group.drafter), key=lambda each: each.share, default=None)
    if group is None or group.share <= DRAFTER_SHARE:
        return []
    return [
        Finding(
            rule="drafter-share",
            summary=f"the drafter's group took {_percent(group.share)} of what {pool.replica} cached at its fullest",
            evidence={"group": group.group, "block_size": group.block_size, "peak_blocks": group.peak_blocks,
                      "num_blocks": pool.num_blocks},
            fix=_fix(group),
            tokens_lost=0,
            severity="info",
            replicas=[pool.replica],
        )
    ]  # fmt: skip


def _evicting(pool: Capacity) -> list[Finding]:
    """Name the group that makes most evictions, where it pushes out blocks of others."""
    group = max(pool.groups, key=lambda each: each.pushed_out)
    taken = {each.of: each.blocks for each in pool.evictions if each.by == group.group}
    others = sum(blocks for of, blocks in taken.items() if of != group.group)
    if group.pushed_out_share <= EVICTING_SHARE or not others:
        return []
    whose = "the drafter's group" if group.drafter else f"group {group.group} ({group.kind})"
    return [
        Finding(
            rule="evicting-group",
            summary=f"{whose} made {_percent(group.pushed_out_share)} of the evictions on {pool.replica}: "
            f"{number(group.pushed_out)} blocks, {number(others)} of them of other groups",
            evidence={"group": group.group, "drafter": group.drafter, "block_size": group.block_size,
                      "pushed_out": group.pushed_out, "of_groups": taken, "pool_share": round(group.share, 3)},
            fix=_fix(group),
            tokens_lost=0,
            severity="info",
            replicas=[pool.replica],
        )
    ]  # fmt: skip


def _fix(group: GroupCapacity) -> str:
    if group.drafter:
        return (
            "give the drafter's layers larger blocks, or a drafter without attention of its own; more of the pool is "
            "then left for the model's groups"
        )
    memory = "more memory for the KV cache (--gpu-memory-utilization, --kv-cache-memory-bytes)"
    if group.kind == names.KIND_FULL_ATTENTION:
        return (
            f"this group takes a block for every {number(group.block_size)} tokens: larger blocks for it, or {memory}, "
            "leave more to the other groups"
        )
    return f"{memory} leaves more to the other groups"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
