"""Retention intervals that keep a boundary which hits needed: what each costs, and whether the pool has room for it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import polars as pl

from analyzers.evictions import by_allocation
from analyzers.model import Capture, LookupResult
from analyzers.residency import Residency
from analyzers.retention import Prefill, left
from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv import names

SHOWN = 5
"""Intervals that are weighed: the densest ones, and the sparsest."""
WEIGHED_PROMPTS = 16
"""Prompts of a life whose states are counted one by one; of more these, of all lengths, speak for the others."""
WEIGHED_POOLS = 4
"""Pools that are weighed: those with least room."""


@dataclass(frozen=True)
class Pool:
    """What the pool of one life had left; blocks.

    Attributes:
        blocks: all that can be cached: vLLM keeps one for itself.
        peak: cached at once at the most.
        working: what the requests that ran at once have besides, at the most.
        evicted: given to others while they were cached.

    """

    blocks: int
    peak: int
    working: int
    evicted: int

    @property
    def room(self) -> int:
        """Blocks that were never needed."""
        return 0 if self.evicted else max(0, self.blocks - self.peak - self.working)


@dataclass(frozen=True)
class Priced:
    """An interval, and what it costs; blocks.

    Attributes:
        interval: in tokens.
        states: what the prompt in question leaves in the sparse groups, computed alone in an empty cache.
        added: what all prompts of one life leave more than today, where the pool has least room for it.
        pool: of that life; None: the size of no pool is known.

    """

    interval: int
    states: int
    added: int
    pool: Pool | None

    @property
    def fits(self) -> bool:
        """Whether the pool has room for what is added."""
        return self.pool is None or self.added <= self.pool.room


def pools_of(caches: Sequence[Residency], capture: Capture) -> dict[int, Pool]:
    """Return, by life, what the pools had left, as far as their sizes are known; `caches` are replayed to the end."""
    blocks = pl.col("fingerprints").bin.size() // FINGERPRINT_BYTES
    evicted = dict(by_allocation(capture.evicts).group_by("life").agg(blocks.sum()).iter_rows())
    running = dict(capture.steps.group_by("life").agg(pl.col("running_requests").max()).iter_rows())
    return {
        life: Pool(
            cache.settings.num_blocks - 1,
            sum(cache.peak),
            max(1, running.get(life) or 0) * working_blocks(cache.settings),
            evicted.get(life, 0),
        )
        for life, cache in enumerate(caches)
        if cache.settings.num_blocks
    }


def working_blocks(settings: Settings) -> int:
    """Return how many blocks a request has at work that are not cached, at the most.

    Of each Mamba group the state it goes on from, the next one, and one for each draft token; of others the last block.
    """
    states = 2 + settings.speculative_tokens
    return sum(states if group.kind == names.KIND_MAMBA else 1 for group in settings.groups)


def keeping(settings: Settings, boundaries: Sequence[int]) -> list[int]:
    """Return the intervals (tokens) that vLLM accepts and that want a state at all `boundaries`, ascending."""
    whole, block = gcd(*boundaries), settings.scheduler_block
    return [size for size in range(block, whole + 1, block) if whole % size == 0]


def states_left(settings: Settings, retention: str, tokens: int) -> int:
    """Return how many blocks a prompt of `tokens`, computed alone, leaves in the sparse groups under `retention`."""
    changed = replace(settings, retention=retention)
    alike = Counter(replace(group, index=0) for group in settings.sparse_groups)
    return sum(count * len(left(changed, group, Prefill(tokens))) for group, count in alike.items())


def priced(
    settings: Settings, intervals: Sequence[int], tokens: int, prompts: Mapping[int, Sequence[int]],
    pools: Mapping[int, Pool],
) -> list[Priced]:  # fmt: skip
    """Return what `intervals` cost.

    Args:
        settings: today's.
        intervals: in tokens.
        tokens: length of the prompt whose states are counted.
        prompts: by life, the lengths of prompts that share no prefix.
        pools: by life.

    """
    found = []
    known: dict[tuple[str, int], int] = {}

    def states(retention: str, length: int) -> int:
        if (retention, length) not in known:
            known[retention, length] = states_left(settings, retention, length)
        return known[retention, length]

    def added(interval: int, lengths: Sequence[int]) -> int:
        some = _some(lengths)
        more = sum(max(0, states(str(interval), each) - states(settings.retention, each)) for each in some)
        return -(-more * len(lengths) // len(some))

    tight = sorted((pool.room, life) for life, pool in pools.items() if prompts.get(life))[:WEIGHED_POOLS]
    for interval in intervals:
        needs = [(added(interval, prompts[life]), pools[life]) for _, life in tight]
        most, pool = max(needs, key=lambda each: each[0] - each[1].room, default=(0, None))
        found.append(Priced(interval, states(str(interval), tokens), most, pool))
    return found


def _some(lengths: Sequence[int]) -> list[int]:
    """Return at most `WEIGHED_PROMPTS` of `lengths`, from the longest to the shortest."""
    ordered = sorted(lengths, reverse=True)
    return ordered[:: -(-len(ordered) // WEIGHED_PROMPTS)] if ordered else []


def weighed(intervals: Sequence[int]) -> list[int]:
    """Return the intervals to weigh: all of a few, of many the densest and the sparsest."""
    return list(intervals) if len(intervals) <= SHOWN else [*intervals[: SHOWN - 1], intervals[-1]]


def best_of(choices: Sequence[Priced]) -> Priced:
    """Return the densest interval that fits; where none does, the sparsest of those that add least."""
    fitting = [each for each in choices if each.fits]
    return fitting[0] if fitting else min(choices, key=lambda each: (each.added, -each.interval))


def prompts_of(results: Sequence[LookupResult]) -> dict[int, list[int]]:
    """Return, by life, the longest prompt of each family that was sent there, in tokens."""
    prompts = pl.DataFrame(
        {
            "life": [result.life for result in results],
            "family": [result.family or result.request_id for result in results],
            "tokens": [result.prompt_tokens for result in results],
        },
        schema={"life": pl.Int32, "family": pl.String, "tokens": pl.Int64},
    )
    longest = prompts.group_by("life", "family").agg(pl.max("tokens"))
    return dict(longest.group_by("life").agg("tokens").sort("life").iter_rows())


def sparser(
    settings: Settings, boundaries: Sequence[int], tokens: int, prompts: Mapping[int, Sequence[int]]
) -> tuple[int, int, int] | None:
    """Return the interval that keeps `boundaries` with fewest states of all `prompts`, of equals the densest.

    Returns:
        The interval, how many states a prompt of `tokens` then leaves, and how many it leaves today, in blocks; None
        where no interval keeps fewer than today's.

    """
    if settings.retention == "0" or not boundaries or any(each % settings.scheduler_block for each in boundaries):
        return None
    lengths = Counter(_some([each for own in prompts.values() for each in own]))

    def kept(retention: str) -> int:
        return sum(count * states_left(settings, retention, each) for each, count in lengths.items())

    today = 0 if settings.retention == names.RETENTION_DENSE else int(settings.retention)
    sparse = [each for each in weighed(keeping(settings, boundaries)) if each > today]
    fewest, interval = min(((kept(str(each)), each) for each in sparse), default=(0, 0))
    if not interval or fewest >= kept(settings.retention):
        return None
    return (
        interval,
        states_left(settings, str(interval), tokens),
        states_left(settings, settings.retention, tokens),
    )
