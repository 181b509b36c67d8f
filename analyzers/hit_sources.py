"""Which requests' chunks left the state that a lookup hit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzers.model import Capture
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.positions import parse_positions


@dataclass(frozen=True)
class HitSource:
    """A request whose chunk left the state at the end of a hit, in some groups, last before the lookup.

    `time` is when it was registered (ns); `chunk` is None where the capture does not tell.
    """

    request: str
    time: int
    chunk: tuple[int, int] | None
    groups: tuple[int, ...]


def hit_sources(capture: Capture, lookup: Mapping[str, Any], unit: int) -> list[HitSource]:
    """Return who left the state that the row `lookup` of `Capture.lookups` hit, in time; nothing where it hit nothing.

    A request has the same prefix where its fingerprint at the end of the hit, and its key, are the lookup's. Nothing
    is found either where whoever left it did so before the capture began.

    Args:
        capture: all of it.
        lookup: the row.
        unit: tokens per fingerprint of this replica, its hash block.

    """
    hit = lookup["hit_tokens"]
    if not hit or not lookup["hit_fingerprint"]:
        return []
    same = set(_named_by(capture, lookup, unit))
    last: dict[int, tuple[int, str, tuple[int, int] | None]] = {}
    stores = capture.stores.filter(
        pl.col("life") == lookup["life"], pl.col("start") <= lookup["start"], pl.col("stored") != "",
        pl.col("request_id").is_in(sorted(same)),
    ).sort("start", maintain_order=True)  # fmt: skip
    for row in stores.iter_rows(named=True):
        if any(hit in run for run in parse_positions(row["stored"])):
            chunk = None if row["chunk_end"] is None else (row["chunk_start"] or 0, row["chunk_end"])
            last[row["group"]] = (row["start"], row["request_id"], chunk)
    groups: dict[tuple[int, str, tuple[int, int] | None], list[int]] = {}
    for group, source in sorted(last.items()):
        groups.setdefault(source, []).append(group)
    found = [HitSource(request, time, chunk, tuple(own)) for (time, request, chunk), own in groups.items()]
    return sorted(found, key=lambda source: (source.time, source.groups))


def _named_by(capture: Capture, lookup: Mapping[str, Any], unit: int) -> Iterator[str]:
    """Yield the requests that had the prefix of the hit, by their lookup or by what they stored while they decoded."""
    own, key = lookup["hit_fingerprint"], lookup["key"] or b""
    life = pl.col("life") == lookup["life"]
    lookups = capture.lookups.filter(life, pl.col("start") <= lookup["start"])
    keyed = {row[0] for row in lookups.select("request_id", "key").iter_rows() if (row[1] or b"") == key}
    for frame in (lookups, capture.stores.filter(life)):
        naming = frame.filter(pl.col("values").bin.contains(own)).select("request_id", "first", "values")
        for request, first, values in naming.iter_rows():
            place, rest = divmod(lookup["hit_tokens"] - (first or 0), unit)
            begin = place * FINGERPRINT_BYTES
            if request in keyed and not rest and place >= 0 and values[begin : begin + FINGERPRINT_BYTES] == own:
                yield request
