"""Requests of one replica that had the same id, one after the other: each gets a name of its own."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from analyzers.model import Capture

_NUMBERED = re.compile(r" \(\d+\)$")


def named_apart(capture: Capture) -> Capture:
    """Return `capture` with the second request of an id called `ID (2)`, the third `ID (3)`, and so on.

    vLLM's ids are unique as long as a request lives. A row belongs to the request that had begun last.
    """
    sent: dict[tuple[int, str], list[int]] = {}
    twice = capture.requests.filter(pl.len().over("life", "request_id") > 1)
    for life, name, start in twice.select("life", "request_id", "start").unique().sort("start").iter_rows():
        if name is not None:
            sent.setdefault((life, name), []).append(start)
    if not sent:
        return capture

    def named(frame: pl.DataFrame, column: str = "request_id") -> pl.DataFrame:
        names = [
            _name(name, sent.get((life, name), ()), start)
            for life, name, start in frame.select("life", column, "start").iter_rows()
        ]
        return frame.with_columns(pl.Series(column, names, pl.String))

    return replace(
        capture,
        lookups=named(capture.lookups),
        stores=named(capture.stores),
        evicts=named(capture.evicts, "evictor_request_id"),
        requests=named(capture.requests),
    )


def original(name: str) -> str:
    """Return the id that the request of this name had."""
    return _NUMBERED.sub("", name)


def _name(name: str | None, starts: Sequence[int], time: int) -> str | None:
    number = bisect_right(starts, time)
    return f"{name} ({number})" if number > 1 else name
