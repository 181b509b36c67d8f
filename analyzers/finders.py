"""The hit that vLLM's lookup would return over given states: each group's finder, and how the groups agree.

These are the rules of vLLM's `find_longest_cache_hit` (`single_type_kv_cache_manager.py`,
`kv_cache_coordinator.py`), restated over positions. All lengths in tokens; `holds(position)` says whether every
group of the set has a key for the prefix that ends at `position`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm
from typing import NamedTuple

from analyzers.settings import Group, Settings
from otel_cache.semconv import names

HoldsOf = Callable[[Group, int], bool]
PositionsOf = Callable[[Sequence[Group]], "Positions"]
"""Gives the positions at which all of some groups have a key."""


class Positions:
    """The positions at which groups have a key, by a predicate; others know faster ways."""

    def __init__(self, holds: Callable[[int], bool]) -> None:
        self._holds = holds

    def __call__(self, position: int) -> bool:
        """Whether there is a key at `position`."""
        return self._holds(position)

    def leading(self, block: int, limit: int) -> int:
        """Return the end of the last block, at most `limit`, up to which each block from the start has a key."""
        length = 0
        while length + block <= limit and self(length + block):
            length += block
        return length

    def last(self, step: int, limit: int) -> int:
        """Return the last multiple of `step`, at most `limit`, that has a key; 0: there is none."""
        return next((position for position in range(limit // step * step, 0, -step) if self(position)), 0)


def each_of(holds: HoldsOf) -> PositionsOf:
    """Return the positions of groups by a predicate."""
    return lambda groups: Positions(lambda position: all(holds(group, position) for group in groups))


class Found(NamedTuple):
    """What a finder matched (`matched`), and what is left of it after the drop and the alignment (`hit`)."""

    matched: int
    hit: int


class Agreed(NamedTuple):
    """The hit of all groups, and the longest of one: vLLM takes it for a prefix that prompts share, and keeps it."""

    hit: int
    longest: int


# What `Found` and `Agreed` do, without a frame of the interpreter for each.
_make_found = partial(tuple.__new__, Found)
_make_agreed = partial(tuple.__new__, Agreed)


def find(group: Group, holds: Positions, limit: int, drop: bool, alignment: int) -> Found:
    """Return the longest hit of one kind of group that ends at or below `limit`."""
    return _FINDERS.get(group.kind, _find_full)(group, holds, limit, drop, alignment)


def _find_full(group: Group, holds: Positions, limit: int, drop: bool, alignment: int) -> Found:
    block = group.block_size
    length = holds.leading(block, limit)
    if _inside_blocks(block, alignment):
        top = min(length + block - alignment, limit // alignment * alignment)
        length = next((p for p in range(top, length, -alignment) if holds(p)), length)
    hit = length
    if drop and hit:
        hit -= min(alignment, block)
    return _make_found((length, hit - hit % alignment))


def _find_mamba(group: Group, holds: Positions, limit: int, _drop: bool, alignment: int) -> Found:
    block = group.block_size
    step = alignment if _inside_blocks(block, alignment) else lcm(block, alignment)
    position = holds.last(step, limit)
    return _make_found((position, position))


def _find_window(group: Group, holds: Positions, limit: int, drop: bool, alignment: int) -> Found:
    block = group.block_size
    need = window_blocks(group, drop)
    run = 0
    length: int | None = None
    for index in range(limit // block - 1, -1, -1):
        if not holds((index + 1) * block):
            run = 0
            continue
        if run == 0 and block != alignment and (index if drop else index + 1) * block % alignment:
            continue
        run += 1
        if run >= need:
            length = index + run
            break
    matched = length if length is not None else _aligned(run, block, alignment)
    hit = _aligned(matched - 1, block, alignment) if drop and matched else matched
    return Found(matched * block, hit * block)


def _find_chunked(group: Group, holds: Positions, limit: int, _drop: bool, _alignment: int) -> Found:
    block = group.block_size
    length = limit // group.window * group.window // block * block
    while length + block <= limit and holds(length + block):
        length += block
    return Found(length, length)


_FINDERS = {
    names.KIND_MAMBA: _find_mamba,
    names.KIND_SLIDING_WINDOW: _find_window,
    names.KIND_CHUNKED_LOCAL: _find_chunked,
}


def window_blocks(group: Group, drop: bool) -> int:
    """Return how many blocks in a row a hit of a sliding window needs, the one to be dropped included."""
    return -(-(group.window - 1) // group.block_size) + (1 if drop else 0)


def _inside_blocks(block: int, alignment: int) -> bool:
    return alignment < block and block % alignment == 0


def _aligned(blocks: int, block: int, alignment: int) -> int:
    while block != alignment and blocks * block % alignment:
        blocks -= 1
    return blocks


def required_positions(group: Group, boundary: int) -> list[int]:
    """Return the block ends that `group` must hold for a hit that ends at `boundary`."""
    block = group.block_size
    if group.kind == names.KIND_MAMBA:
        return [boundary]
    if group.kind == names.KIND_SLIDING_WINDOW:
        end = boundary + (block if group.drops else 0)
        first = max(0, end - window_blocks(group, group.drops) * block)
        return list(range(first + block, end + 1, block))
    if group.kind == names.KIND_CHUNKED_LOCAL:
        first = boundary // group.window * group.window // block * block
        return list(range(first + block, boundary + 1, block))
    return list(range(block, boundary + 1, block))


def agree(settings: Settings, held: PositionsOf, limit: int, hashed: int, drop: bool = True) -> int:
    """Return the hit on which all groups agree: that of `agreement`, which has the same arguments."""
    return agreement(settings, held, limit, hashed, drop).hit


def agreement(settings: Settings, held: PositionsOf, limit: int, hashed: int, drop: bool = True) -> Agreed:
    """Return the hit on which all groups agree, and the longest that a group had on the way there.

    Args:
        settings: the replica's.
        held: the positions at which groups have a key for the prefix that ends there.
        limit: the longest hit allowed, usually the prompt without its last token.
        hashed: the last position that the request has a key for.
        drop: False leaves out what speculation drops.

    """
    if len(settings.groups) == 1:
        group = settings.groups[0]
        alone = find(group, held((group,)), limit, drop and group.drops, group.block_size).hit
        return _make_agreed((alone, alone))
    beyond = hashed if settings.block_beyond else limit
    hit, longest = limit, 0
    if settings.one_pass:
        for groups in settings.lookup_sets:
            hit = _next_hit(settings, groups, held, hit, beyond, drop and groups[0].flagged)
            if hit > longest:
                longest = hit
        return _make_agreed((hit if hit < limit else limit, longest))
    verified: set[int] = set()
    dense_hits: dict[int, int] = {}
    while True:
        current = hit
        for index, groups in enumerate(settings.lookup_sets):
            group = groups[0]
            if group.dense and index in dense_hits:
                current = min(current, dense_hits[index])
                continue
            to_drop = drop and group.flagged and index not in verified
            found = _next_hit(settings, groups, held, current, beyond, to_drop)
            if to_drop:
                verified.add(index)
            elif found < current:
                verified.clear()
            current = found
            longest = max(longest, found)
            if group.dense:
                dense_hits[index] = found
        if current >= hit:
            return Agreed(hit, longest)
        hit = current


def _next_hit(
    settings: Settings, groups: Sequence[Group], held: PositionsOf, current: int, beyond: int, drop: bool
) -> int:
    """Return the hit of some groups that are looked up together, after a hit of `current` of those before."""
    group = groups[0]
    drop = drop and group.drops
    if drop:
        current = min(current + drop_unit(settings, group), beyond)
    if not current:
        return 0
    return find(group, held(groups), current, drop, settings.alignment).hit


def furthest(settings: Settings, held: PositionsOf, limit: int, hashed: int) -> int:
    """Return the longest hit of a kind of group alone: the hit where a KV connector brings what the others lack.

    It is that of the attention groups, except that vLLM 0.26 lets a state of a sparse group count that lies further on.
    The arguments are those of `agree`.
    """
    hits = []
    for groups in settings.lookup_sets:
        group = groups[0]
        asked = limit
        if settings.block_beyond and group.drops:
            asked = min(limit + drop_unit(settings, group), hashed)
        hits.append(find(group, held(groups), asked, group.drops, settings.alignment).hit)
    return max(hits)


def drop_unit(settings: Settings, group: Group) -> int:
    """Return what a group that drops for speculation looks beyond a hit and then gives up, in tokens."""
    fine = settings.partial_hits and group.fine_grained and group.block_size > settings.hash_block
    return settings.hash_block if fine else group.block_size
