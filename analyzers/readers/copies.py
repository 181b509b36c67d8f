"""Spans that came more than once: which copy counts does not depend on the order in which they were read.

Copies differ where one was damaged, or where something took attributes from it on its way: the one that holds most is
taken, and of those that hold as much any, but always the same one.
"""

from collections.abc import Iterable, Sequence

import polars as pl

from analyzers.readers.schemas import AT

_HELD, _HASH = "held", "hash"


def contents(frames: Iterable[pl.DataFrame], wanted: pl.Series) -> pl.DataFrame:
    """Return of some spans (`wanted`: a boolean per number) how much their rows in `frames` hold, and a hash of it."""
    found = [pl.DataFrame(schema={AT: pl.UInt32(), _HELD: pl.UInt64(), _HASH: pl.UInt64()})]
    for frame in frames:
        rows = frame.filter(wanted.gather(frame[AT]))
        # What a life is numbered depends on the order of reading.
        values = rows.drop(AT, "life")
        sizes = [_size(name, dtype).cast(pl.UInt64) for name, dtype in values.schema.items()]
        told = values.select(
            rows[AT], pl.sum_horizontal(sizes).alias(_HELD), pl.struct(values.columns).hash().alias(_HASH)
        )
        found.append(told.group_by(AT).agg(pl.col(_HELD).sum(), pl.col(_HASH).sum()))
    return pl.concat(found)


def choose(copies: pl.DataFrame, told: pl.DataFrame, identity: Sequence[str]) -> tuple[pl.Series, int]:
    """Return the numbers of the copies that count, one per span, and of how many spans the copies are not the same.

    Args:
        copies: all copies of spans that have some: `AT`, their `identity`, `start`, and what else tells them apart.
        told: their `contents`; those without rows have none.
        identity: the columns that say which span it is.

    """
    every = copies.join(told, on=AT, how="left").with_columns(pl.col(_HELD, _HASH).fill_null(0))
    others = [name for name in copies.columns if name not in (AT, *identity)]
    first = every.sort(-pl.col(_HELD).cast(pl.Int64), _HASH, *others).unique(identity, keep="first")
    versions = every.group_by(identity).agg(pl.struct("start", _HASH).n_unique() > 1)
    return first[AT], int(versions["start"].sum())


def _size(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if dtype == pl.String:
        column = column.str.len_bytes()
    elif dtype == pl.Binary:
        column = column.bin.size()
    elif dtype == pl.List:
        column = column.list.len()
    else:
        column = column.is_not_null()
    return column.fill_null(0)
