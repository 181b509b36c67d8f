"""Which group's allocations pushed out whose blocks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import polars as pl

from analyzers.model import Eviction
from otel_cache.records import FINGERPRINT_BYTES

ALLOCATION = "allocation"
"""A key that its own request registered anew under another position is no eviction."""


@lru_cache(maxsize=1 << 12)
def takers_of(written: str, count: int) -> Sequence[int | None]:
    """Return the group that was given each of `count` blocks, from the form that evict spans have; None: not known."""
    takers = [int(each) if each else None for each in written.split(",")]
    return takers * count if len(takers) == 1 else takers[:count]


def by_allocation(evicts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `Capture.evicts` that are evictions: blocks of a group that were given to a request."""
    return evicts.filter(pl.col("group") >= 0, pl.col("reason").is_in(["", ALLOCATION]))


def evictions_of(evicts: pl.DataFrame) -> Mapping[int, list[Eviction]]:
    """Return, by life, how many blocks of each group went for each group's allocations, by (evicting, evicted)."""
    counts: dict[int, Counter[tuple[int | None, int]]] = {}
    blocks = pl.col("fingerprints").bin.size() // FINGERPRINT_BYTES
    by_text = by_allocation(evicts).group_by("life", "group", "evictor_groups", blocks).len()
    for life, group, written, count, times in by_text.iter_rows():
        own = counts.setdefault(life, Counter())
        for taker in takers_of(written, count):
            own[taker, group] += times
    return {
        life: [Eviction(by, of, blocks) for (by, of), blocks in sorted(own.items(), key=_order)]
        for life, own in counts.items()
    }


def _order(item: tuple[tuple[int | None, int], int]) -> tuple[bool, int, int]:
    (by, of), _ = item
    return by is None, by or 0, of
