"""What a fleet, its routers and its pools did, as text."""

from analyzers.model import Analysis, Capacity, GroupCapacity, Range
from analyzers.reporters.layout import INDENT, Align, count, percent, shorten, table, wrap
from analyzers.reporters.paint import BOLD, Paint

MAX_REPLICAS = 8
MAX_FAMILIES = 3
MAX_ENDPOINTS = 8
MAX_MOMENTS = 6
"""Of a pool's occupancy over time."""


def fleet_section(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    """Return what routing did; nothing where there is one replica only."""
    fleet = analysis.fleet
    if fleet is None:
        return []
    lines = [paint(BOLD, "Fleet")]
    lines += wrap(
        f"regret, what the best replica would have hit more: {count(fleet.regret_tokens, 'token')} in "
        f"{count(fleet.regretted_lookups, 'lookup')}",
        width, INDENT, INDENT * 2,
    )  # fmt: skip
    if fleet.regret_tokens:
        lines += wrap(
            f"routing by prefix would have saved {fleet.sticky_prefix_tokens:,}, by conversation "
            f"{fleet.sticky_conversation_tokens:,}, of what was resident at the time",
            width, INDENT, INDENT * 2,
        )  # fmt: skip
        families = [f"{shorten(family, 24)} {tokens:,}" for family, tokens in fleet.regret_by_family[:MAX_FAMILIES]]
        lines += wrap(f"families with most regret: {', '.join(families)}", width, INDENT, INDENT * 2)
    lines += wrap(
        f"prefixes stored: {count(fleet.stored_tokens, 'token')}, of which {fleet.distinct_tokens:,} distinct",
        width, INDENT, INDENT * 2,
    )  # fmt: skip
    return lines


def routers_section(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    """Return what became of the requests that routers sent; nothing where none tells of itself."""
    if not analysis.routed:
        return []
    lines = [paint(BOLD, "Routers")]
    for each in sorted(analysis.routed, key=lambda one: -one.lookups)[:MAX_ENDPOINTS]:
        logic = f" ({shorten(each.routing_logic, 24)})" if each.routing_logic else ""
        said = f"{shorten(each.endpoint, 48) or 'endpoint not known'}{logic}: {count(each.lookups, 'lookup')} on "
        said += f"{', '.join(shorten(replica, 24) for replica in each.replicas[:MAX_REPLICAS])}, "
        said += f"hit {each.hit_tokens:,}, another replica would have hit {each.regret_tokens:,} more"
        if each.predicted_lookups:
            said += f"; saw {each.predicted_tokens:,} cached, the best replicas would have hit {each.best_tokens:,}"
        lines += wrap(said, width, INDENT, INDENT * 2)
    hidden = len(analysis.routed) - MAX_ENDPOINTS
    return lines + (
        wrap(f"and {hidden:,} more endpoints: --format json lists them", width, INDENT) if hidden > 0 else []
    )


def capacity_section(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    """Return what the pools held; nothing where none lost a block and no drafter takes a share."""
    shown = [pool for pool in analysis.capacity if _worth(pool)][:MAX_REPLICAS]
    if not shown:
        return []
    lines = [paint(BOLD, "Block pools")]
    for pool in shown:
        lines += wrap(f"{shorten(pool.replica, 40)}: {count(pool.num_blocks, 'block')}", width, INDENT)
        rows = [
            (
                _name(group),
                shorten(group.kind, 24),
                f"{group.block_size:,}",
                f"{group.peak_blocks:,}",
                percent(round(1000 * group.share), 1000),
                f"{group.evicted:,}",
                f"{group.segment_blocks:.1f}",
                _milliseconds(group.age_ms),
            )
            for group in pool.groups
        ]
        header = ("group", "kind", "block", "peak", "share", "evicted", "per segment", "age at eviction")
        lines += table(header, rows, ("<", "<", ">", ">", ">", ">", ">", "<"), width, INDENT * 2)
        lines += wrap(_rest(pool), width, INDENT * 2, INDENT * 3)
        if any(group.drafter for group in pool.groups):
            lines += wrap("* the drafter's", width, INDENT * 2)
        lines += _matrix(pool, width)
        lines += _occupancy(pool, width)
        if pool.reuse_gap_ms:
            lines += wrap(f"from eviction to the next miss: {_milliseconds(pool.reuse_gap_ms)}", width, INDENT * 2)
        if pool.warm > 1:
            names = [f"{shorten(request, 24)} ({tokens:,} tokens)" for request, tokens in pool.longest]
            said = f"{pool.warm:,} conversations stayed warm together, the longest {' and '.join(names)}"
            lines += wrap(said, width, INDENT * 2, INDENT * 3)
    return lines


def _rest(pool: Capacity) -> str:
    """Say of what the shares are, and what the blocks were that nothing was cached in."""
    said = (
        f"cached at once at the most: {pool.cached_most:,} of {pool.num_blocks:,}, of which share is a group's part; "
    )
    said += "the others were free, or held by requests that had cached nothing in them yet"
    if pool.used_most is not None:
        said += f"; requests held at most {100 * pool.used_most:.1f} % of the pool"
    return said


def _name(group: GroupCapacity) -> str:
    return str(group.group) + ("*" if group.drafter else "")


def _matrix(pool: Capacity, width: int) -> list[str]:
    """Return which groups' allocations pushed out whose blocks; nothing where one group has the pool to itself."""
    if len(pool.groups) < 2 or not pool.evictions:
        return []
    blocks = {(each.by, each.of): each.blocks for each in pool.evictions}
    rows = [
        (
            _name(group),
            percent(round(1000 * group.pushed_out_share), 1000),
            *(f"{blocks.get((group.group, of.group), 0):,}" for of in pool.groups),
        )
        for group in pool.groups
    ]
    if any(by is None for by, _ in blocks):
        rows.append(("?", "", *(f"{blocks.get((None, of.group), 0):,}" for of in pool.groups)))
    header = ("given to", "share", *(f"of {_name(group)}" for group in pool.groups))
    numbers: list[Align] = [">" for _ in header[1:]]
    lines = wrap("blocks evicted, by the group that was given them, and of which group they were:", width, INDENT * 2)
    return lines + table(header, rows, ["<", *numbers], width, INDENT * 3)


def _occupancy(pool: Capacity, width: int) -> list[str]:
    """Return how many blocks each group held over time, at a few moments, the first and the last among them."""
    last = len(pool.occupancy) - 1
    if last < 1:
        return []
    steps = min(last, MAX_MOMENTS - 1)
    chosen = [pool.occupancy[round(step * last / steps)] for step in range(steps + 1)]
    held = "; ".join(
        f"group {_name(group)} {', '.join(f'{blocks[index]:,}' for _, blocks in chosen)}"
        for index, group in enumerate(pool.groups)
    )
    said = f"cached at {', '.join(f'{ms:,.1f}' for ms, _ in chosen)} ms: {held}"
    return wrap(said, width, INDENT * 2, INDENT * 3)


def _worth(pool: Capacity) -> bool:
    return any(group.evicted or (group.drafter and group.share > 0.5) for group in pool.groups)


def _milliseconds(spread: Range | None) -> str:
    """Write median and 90th percentile."""
    return "-" if spread is None else f"median {spread[0]:,.1f} ms, 90 % within {spread[1]:,.1f} ms"
