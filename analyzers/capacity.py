"""What each replica's pool held, what went, and which conversations stayed."""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from analyzers import model
from analyzers.evictions import by_allocation, evictions_of
from analyzers.model import Capacity, Capture, Eviction, GroupCapacity, LookupResult, Range
from analyzers.residency import Residency
from analyzers.settings import Group, Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv import names

MOMENTS = 60
GONE = frozenset({model.EVICTED, model.CHECKPOINT_EVICTED, model.RESET})


def capacity_of(capture: Capture, caches: Sequence[Residency], results: Sequence[LookupResult]) -> list[Capacity]:
    """Return what the pool of each life held that stored anything, in the order of lives."""
    found = []
    evicted, evictions, used = _evicted(capture.evicts), evictions_of(capture.evicts), _used(capture.steps)
    by_life: dict[int, list[LookupResult]] = {}
    for result in results:
        by_life.setdefault(result.life, []).append(result)
    for life, cache in zip(capture.lives, caches, strict=True):
        if not (moments := cache.moments):
            continue
        own = by_life.get(life.index, [])
        warm, longest = _warm(own)
        found.append(
            Capacity(
                replica=life.replica,
                num_blocks=cache.settings.num_blocks,
                groups=[
                    _group(cache, group, evicted.get((life.index, group.index)), evictions.get(life.index, ()))
                    for group in cache.settings.groups
                ],
                occupancy=_thinned(moments),
                reuse_gap_ms=_spread(_gaps(own)),
                warm=warm,
                longest=longest,
                evictions=evictions.get(life.index, ()),
                cached_most=sum(cache.peak),
                used_most=used.get(life.index),
            )
        )
    return found


def _evicted(evicts: pl.DataFrame) -> Mapping[tuple[int, int], tuple[int, list[int]]]:
    """Return, by (life, group), how many blocks were given to others, and their ages (ms)."""
    found: dict[tuple[int, int], tuple[int, list[int]]] = {}
    blocks = pl.col("fingerprints").bin.size() // FINGERPRINT_BYTES
    by_group = by_allocation(evicts).group_by("life", "group").agg(blocks.sum(), pl.col("ages").explode().drop_nulls())
    for life, group, count, ages in by_group.iter_rows():
        found[life, group] = (count, ages)
    return found


def most_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Return, a row per life, the most that the columns of `Capture.steps` ever were: all that pools need of them."""
    return steps.group_by("life").max()


def _used(steps: pl.DataFrame) -> Mapping[int, float]:
    """Return, by life, the share of the pool that was in use at the most."""
    most = steps.drop_nulls("pool_usage").group_by("life").agg(pl.col("pool_usage").max())
    return dict(most.select("life", "pool_usage").iter_rows())


def _group(
    cache: Residency, group: Group, evicted: tuple[int, list[int]] | None, evictions: Sequence[Eviction]
) -> GroupCapacity:
    count, ages = evicted or (0, [])
    pushed_out = sum(each.blocks for each in evictions if each.by == group.index)
    known = sum(each.blocks for each in evictions if each.by is not None)
    residency = cache.groups[group.index]
    return GroupCapacity(
        group=group.index,
        kind=group.kind,
        block_size=group.block_size,
        drafter=is_drafter(cache.settings, group),
        peak_blocks=residency.peak,
        share=cache.peak[group.index] / max(1, sum(cache.peak)),
        stored=residency.stored,
        evicted=count,
        segment_blocks=residency.distinct / max(1e-9, _segments(cache)),
        age_ms=_spread(ages),
        pushed_out=pushed_out,
        pushed_out_share=pushed_out / max(1, known),
    )


def is_drafter(settings: Settings, group: Group) -> bool:
    """Whether `group` is the drafter's own: flagged for speculation, where other attention groups are not.

    Where there is no other the drafter's layers share it with the model's.
    """
    others = (other for other in settings.groups if other.kind != names.KIND_MAMBA and other.index != group.index)
    return group.flagged and any(not other.flagged for other in others)


def _segments(cache: Residency) -> float:
    """Return how many scheduler blocks of distinct prefix were stored."""
    dense = cache.settings.dense_groups
    if not dense:
        return len(cache.computed) * cache.settings.hash_block / cache.settings.scheduler_block
    return cache.groups[dense[0].index].distinct * dense[0].block_size / cache.settings.scheduler_block


def _thinned(moments: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[float, Sequence[int]]]:
    """Return at most `MOMENTS` of the moments, the first and the last among them."""
    last = len(moments) - 1
    steps = min(last, MOMENTS - 1)
    chosen = sorted({round(step * last / steps) if steps else 0 for step in range(steps + 1)})
    return [(round((moments[i][0] - moments[0][0]) / 1e6, 3), moments[i][1]) for i in chosen]


def _gaps(results: Iterable[LookupResult]) -> list[float]:
    return [
        fact.data["before_ms"]
        for result in results
        for fact in result.facts
        if fact.cls in GONE and "evictor" in fact.data and not fact.data.get("also")
    ]


def _spread(values: Sequence[float]) -> Range | None:
    """Return median and 90th percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2]), float(ordered[len(ordered) * 9 // 10])


def _warm(results: Sequence[LookupResult]) -> tuple[int, list[tuple[str, int]]]:
    """Return how many conversations stayed warm at once, at the most, and the two longest that did together."""
    families: dict[str, list[LookupResult]] = {}
    for result in results:
        families.setdefault(result.family, []).append(result)
    warm = [
        (members[0].time, members[-1].time, max(member.prompt_tokens for member in members), family)
        for family, members in families.items()
        if len(members) > 1 and all(GONE.isdisjoint(member.lost) for member in members)
    ]
    return together(warm)


def together(warm: list[tuple[int, int, int, str]]) -> tuple[int, list[tuple[str, int]]]:
    """Return how many conversations there were at once, at the most, and the two longest that overlap.

    Args:
        warm: (begin, end, tokens, name) of each; it is sorted, the longest first.

    """
    edges = sorted([(begin, 0, 1) for begin, _, _, _ in warm] + [(end, 1, -1) for _, end, _, _ in warm])
    most = at_once = 0
    for _, _, change in edges:
        at_once += change
        most = max(most, at_once)
    # The longest first; of each the longest other that overlaps with it.
    warm.sort(key=lambda each: (-each[2], each[3]))
    best: list[tuple[str, int]] = []
    for index, (begin, end, tokens, family) in enumerate(warm[:200]):
        other = next((each for each in warm[index + 1 :] if each[0] <= end and begin <= each[1]), None)
        if other and (not best or tokens + other[2] > sum(length for _, length in best)):
            best = [(family, tokens), (other[3], other[2])]
    return most, best or [(family, tokens) for _, _, tokens, family in warm[:1]]
