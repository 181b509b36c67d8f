"""Whose chunk left the state that a lookup hit: the model case, and others that stored at that position."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzers.hit_sources import HitSource, hit_sources
from analyzers.model import Capture
from analyzers.readers import open_capture
from analyzers.story import departed
from tests.reporters.example import REPEAT

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))


@pytest.fixture(scope="module")
def capture() -> Capture:
    return open_capture([EXAMPLE])


def looked(capture: Capture, request: str) -> dict[str, Any]:
    return capture.lookups.row(by_predicate=pl.col("request_id") == request, named=True)


def test_the_model_case(capture: Capture) -> None:
    """The mask refused 9,600 to `cold`; `repeat-0` computed it again, and all groups kept it. It hit nothing itself."""
    (source,) = hit_sources(capture, looked(capture, "repeat-1"), 1600)
    assert (source.request, source.chunk, source.groups) == ("repeat-0", (8000, 9600), (0, 1, 2, 3))
    assert hit_sources(capture, looked(capture, "repeat-2"), 1600) == [source]
    assert hit_sources(capture, looked(capture, "repeat-0"), 1600) == []


def beside(capture: Capture, **changed: Any) -> Capture:
    """Return the capture with another request that stored at the same positions as `repeat-0`, 1 us later."""
    mine = pl.col("request_id") == "repeat-0"
    other = [pl.lit("other").alias("request_id"), pl.col("start") + 1000]
    lookups = capture.lookups.filter(mine).with_columns(*other).with_columns(
        *(pl.lit(value, capture.lookups.schema[name]).alias(name) for name, value in changed.items())
    )  # fmt: skip
    stores = capture.stores.filter(mine).with_columns(*other)
    return replace(capture, lookups=pl.concat([capture.lookups, lookups]), stores=pl.concat([capture.stores, stores]))


def sources(capture: Capture) -> list[HitSource]:
    return hit_sources(capture, looked(capture, "repeat-1"), 1600)


def test_only_who_had_the_same_prefix_under_the_same_key(capture: Capture) -> None:
    """The last store of it before the lookup counts."""
    assert {source.request for source in sources(beside(capture))} == {"other"}
    values = looked(capture, "repeat-0")["values"]
    for changed in (
        {"values": values[8:] + bytes(8)},
        {"values": bytes(len(values))},
        {"key": b"another!"},
        {"life": 7},
    ):
        assert {source.request for source in sources(beside(capture, **changed))} == {"repeat-0"}, changed


def test_who_left_it_before_the_capture_is_not_named(capture: Capture) -> None:
    assert sources(replace(capture, stores=capture.stores.clear())) == []


def test_rows_of_one_cause_are_one() -> None:
    """What was evicted for one request, for one group of it, is told once, at its first moment; another cause apart."""

    def fact(before: float, idle: float, groups: list[int], evictor: str, taker: int) -> Any:
        data = {"replica": "r0", "before_ms": before, "idle_ms": idle, "groups": groups, "evictor": evictor,
                "evictor_group": taker}  # fmt: skip
        return replace(REPEAT.facts[0], says="said", data=data)

    facts = [fact(5.0, 2.0, [3], "big", 3), fact(4.5, 2.5, [0, 1], "big", 3), fact(3.0, 1.0, [0], "late", 0)]
    moments = sorted(departed(replace(REPEAT, facts=facts, time=10**9)))
    assert [(moment.time, moment.request, moment.says) for moment in moments] == [
        (
            10**9 - 5_000_000, "big",
            "r0 gave blocks of groups 0, 1, 3 away to group 3, unused for 2.0 to 2.5 ms; the last of them 0.5 ms later",
        ),
        (10**9 - 3_000_000, "late", "r0 gave blocks of group 0 away to group 0, unused for 1.0 ms"),
    ]  # fmt: skip
    reset = replace(REPEAT.facts[0], data={"replica": "r0", "before_ms": 2.0, "groups": [0]})
    assert [moment[1:] for moment in departed(replace(REPEAT, facts=[reset]))] == [("-", "r0 lost its cache")]
