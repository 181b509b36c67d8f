"""The order of a capture's rows: by life and record number, the same whatever the order of reading."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

BY_RECORD = ("life", "sequence", "number", "group", "span")
BY_TIME = ("life", "start", "span")


def sort(frame: pl.DataFrame, by: Sequence[str] = BY_RECORD) -> pl.DataFrame:
    """Return the rows in the order of the columns `by`, of those that there are; none of them is below 0.

    `frame` has no columns any more then: no two of them are in memory twice at the same time.
    """
    keys = frame.select(name for name in by if name in frame.columns).rechunk()
    words = [each.fill_null(-1).to_numpy() if each.null_count() else each.to_numpy() for each in keys]
    # Rows come nearly in order: mostly two columns tell, and that they do is seen faster than it is sorted by all.
    rows = pl.Series(np.lexsort(words[1::-1]), dtype=pl.UInt32)
    if not _is_sorted(keys[rows]):
        rows = pl.Series(np.lexsort(words[::-1]), dtype=pl.UInt32)
    return pl.DataFrame([frame.drop_in_place(name).gather(rows) for name in frame.columns])


def _is_sorted(keys: pl.DataFrame) -> bool:
    """Whether rows stand in the order of their columns, nulls first."""
    right = pl.lit(True)
    for name in reversed(keys.columns):
        own, following = pl.col(name), pl.col(name).shift(-1)
        below = own.is_null() | (own < following).fill_null(False)
        right = pl.when(own.eq_missing(following)).then(right).otherwise(below)
    return bool(keys.select(right.head(pl.len() - 1).all()).item()) if keys.height else True


def follow_lookups(groups: pl.DataFrame, lookups: pl.DataFrame) -> pl.DataFrame:
    """Give rows without a sequence that of their lookup; those without a lookup either explain nothing and go."""
    parents = lookups.select("life", parent="span", lookup_sequence="sequence").unique(
        ["life", "parent"], keep="first", maintain_order=True
    )
    found = groups.select("life", "parent").join(parents, on=["life", "parent"], how="left", maintain_order="left")
    placed = groups.with_columns(pl.coalesce("sequence", found["lookup_sequence"]).alias("sequence"))
    return placed.drop_nulls("sequence") if placed["sequence"].null_count() else placed


def place_markers(evicts: pl.DataFrame, evidence: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Give rows without a sequence that of the last evidence before them, by evidence number; 0 where there is none."""
    unplaced = pl.col("sequence").is_null()
    markers = evicts.filter(unplaced)
    if markers.is_empty():
        return evicts
    known = (
        pl.concat([frame.select("life", "number", last="sequence") for frame in evidence])
        .drop_nulls()
        .sort("number", "last")
    )
    placed = (
        markers.sort("number")
        .join_asof(known, on="number", by="life", strategy="backward", check_sortedness=False)
        .with_columns(pl.col("last").fill_null(0).alias("sequence"))
        .drop("last")
    )
    return pl.concat([evicts.filter(~unplaced), placed])
