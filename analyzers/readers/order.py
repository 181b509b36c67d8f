"""The order of a capture's rows: by life and record number, the same whatever the order of reading."""

from collections.abc import Sequence

import polars as pl


def sort(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows by life and sequence; ties by evidence number, group and span.

    `frame` loses its columns, one after the other: so no more than one of them is in memory twice.
    """
    keys = [key for key in ("life", "sequence", "number", "group", "span") if key in frame.columns]
    rows = frame.select(pl.arg_sort_by(keys)).to_series()
    return pl.DataFrame([frame.drop_in_place(name).gather(rows) for name in frame.columns])


def follow_lookups(groups: pl.DataFrame, lookups: pl.DataFrame) -> pl.DataFrame:
    """Give rows without a sequence that of their lookup; those without a lookup either explain nothing and go."""
    parents = lookups.select("life", parent="span", lookup_sequence="sequence").unique(
        ["life", "parent"], keep="first", maintain_order=True
    )
    return (
        groups.join(parents, on=["life", "parent"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("sequence", "lookup_sequence").alias("sequence"))
        .drop("lookup_sequence")
        .filter(pl.col("sequence").is_not_null())
    )


def place_markers(evicts: pl.DataFrame, evidence: Sequence[pl.DataFrame]) -> pl.DataFrame:
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
