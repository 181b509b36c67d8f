"""The order of rows is polars' own by all their keys, whatever the order they come in."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from analyzers.readers import order

FEW = st.integers(0, 2)
MANY = st.integers(0, 2**63 - 1)
ROW = st.tuples(
    st.integers(0, 3), FEW | MANY, st.none() | FEW | MANY, st.integers(-1, 2), FEW | st.integers(0, 2**64 - 1)
)
SCHEMA = {"life": pl.Int32, "sequence": pl.Int64, "number": pl.Int64, "group": pl.Int32, "span": pl.UInt64}


@given(rows=st.lists(ROW, max_size=20), cut=st.integers(0, 20))
def test_rows_are_sorted_by_all_keys(rows: list[tuple[int | None, ...]], cut: int) -> None:
    numbered = [(*row, at) for at, row in enumerate(rows)]
    parts = [pl.DataFrame(part, {**SCHEMA, "at": pl.Int64}, orient="row") for part in (numbered[:cut], numbered[cut:])]
    expected = pl.concat(parts).sort(*SCHEMA, maintain_order=True)
    assert_frame_equal(order.sort(pl.concat(parts)), expected)
