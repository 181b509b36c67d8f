"""The lookups as a table, a row each, for Parquet: what is too much for one JSON object, and fit for other tools."""

from collections.abc import Sequence

import polars as pl

from analyzers.model import CLASSES, LookupResult

_GROUP = pl.Struct(
    {
        "group": pl.Int32, "kind": pl.String, "block_size": pl.Int64, "asked_tokens": pl.Int64, "hit_tokens": pl.Int64,
        "stored_below": pl.Int64, "stored_above": pl.Int64, "state": pl.String, "chunk_start": pl.Int64,
        "chunk_end": pl.Int64, "wanted": pl.List(pl.Int64), "unmade": pl.List(pl.Int64),
    }
)  # fmt: skip
SCHEMA: dict[str, pl.DataType] = {
    "request_id": pl.String(), "replica": pl.String(), "life": pl.Int32(), "time": pl.Datetime("ns", "UTC"),
    "attempts": pl.Int64(), "prompt_tokens": pl.Int64(), "hit_tokens": pl.Int64(), "predicted_hit_tokens": pl.Int64(),
    "needed_boundary": pl.Int64(), **{f"lost_{cls}": pl.Int64() for cls in CLASSES},
    "limiting_groups": pl.List(pl.Int32), "reason": pl.String(), "cause": pl.String(), "producer": pl.String(),
    "family": pl.String(), "intact_boundary": pl.Int64(), "best_hit_tokens": pl.Int64(),
    "best_replicas": pl.List(pl.String), "regret_tokens": pl.Int64(), "previous_turn_hit_tokens": pl.Int64(),
    "endpoint": pl.String(), "router_hit_tokens": pl.Int64(), "groups": pl.List(_GROUP),
}  # fmt: skip
_PLAIN = (
    "request_id", "replica", "life", "time", "attempts", "prompt_tokens", "hit_tokens", "predicted_hit_tokens",
    "needed_boundary", "reason", "cause", "producer", "family", "intact_boundary", "best_hit_tokens", "regret_tokens",
    "previous_turn_hit_tokens", "endpoint", "router_hit_tokens",
)  # fmt: skip


def lookup_frame(lookups: Sequence[LookupResult]) -> pl.DataFrame:
    """Return the rows, in their order: the fields of `LookupResult`, and `lost_CLASS`, in tokens, for every class."""
    columns: dict[str, list[object]] = {name: [getattr(each, name) for each in lookups] for name in _PLAIN}
    for cls in CLASSES:
        columns[f"lost_{cls}"] = [each.lost.get(cls, 0) for each in lookups]
    for name in ("limiting_groups", "best_replicas"):
        columns[name] = [list(getattr(each, name)) for each in lookups]
    columns["groups"] = [
        [
            {
                name: list(value) if isinstance(value := getattr(group, name), (list, tuple)) else value
                for name in _GROUP.to_schema()
            }
            for group in each.groups
        ]
        for each in lookups
    ]
    times = pl.Series("time", columns.pop("time"), dtype=pl.Int64).cast(SCHEMA["time"])
    schema = {name: kind for name, kind in SCHEMA.items() if name != "time"}
    return pl.DataFrame(columns, schema=schema).with_columns(times).select(list(SCHEMA))
