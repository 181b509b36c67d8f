"""The table of lookups: every lookup is a row, and its tokens add up as in the object."""

from io import BytesIO

import polars as pl
from hypothesis import given, settings

from analyzers.model import CLASSES, Analysis
from analyzers.reporters.lookup_frame import SCHEMA, lookup_frame
from tests.reporters.example import ANALYSIS, analyses


@settings(deadline=None, max_examples=40)
@given(analyses())
def test_what_is_written_is_what_was_found(analysis: Analysis) -> None:
    buffer = BytesIO()
    lookup_frame(analysis.lookups).write_parquet(buffer)
    rows = pl.read_parquet(buffer.getvalue())
    assert dict(rows.schema) == SCHEMA
    for row, lookup in zip(rows.iter_rows(named=True), analysis.lookups, strict=True):
        assert row["request_id"] == lookup.request_id
        assert row["prompt_tokens"] == lookup.prompt_tokens
        assert {cls: row[f"lost_{cls}"] for cls in CLASSES if row[f"lost_{cls}"]} == dict(lookup.lost)
        assert [group["stored_below"] for group in row["groups"]] == [group.stored_below for group in lookup.groups]
        assert [group["wanted"] for group in row["groups"]] == [list(group.wanted) for group in lookup.groups]


def test_sums_are_a_query() -> None:
    rows = lookup_frame(ANALYSIS.lookups)
    assert rows.select(pl.sum("lost_shifted_boundary", "hit_tokens", "prompt_tokens")).row(0) == (9600, 0, 23820)
