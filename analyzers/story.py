"""One request's story: what happened before it, to it and because of it, in time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from analyzers.analysis import analyze
from analyzers.evictions import takers_of
from analyzers.hit_sources import HitSource, hit_sources
from analyzers.model import Analysis, Capture, LookupResult
from analyzers.same_ids import named_apart, original
from analyzers.settings import read_settings
from analyzers.suggestions import instead_of
from analyzers.wording import counted, milliseconds, number
from otel_cache.errors import UsageError
from otel_cache.records import FINGERPRINT_BYTES

RELATIVES = 5
"""Earlier requests of the family that a story begins with."""


class Moment(NamedTuple):
    """What happened at `time` (ns since the epoch), and to which request."""

    time: int
    request: str
    says: str


@dataclass(frozen=True)
class Story:
    """A request on one life of a replica: its result, its time line, and who left the state that it hit."""

    result: LookupResult
    moments: list[Moment]
    sources: Sequence[HitSource] = ()


def stories(capture: Capture, request: str) -> list[Story]:
    """Return the stories of the requests with this id, vLLM's or the API's; each on each replica that had it.

    Raises:
        UsageError: the id is empty, or the capture has no lookup of such a request.

    """
    if not request:
        raise UsageError("an empty REQUEST: is a variable unset?")
    capture = named_apart(capture)
    analysis = analyze(capture)
    ids = set(capture.requests.filter(_given_out_as(request)).select("life", "request_id").iter_rows())
    found = [
        result
        for result in analysis.lookups
        if request in (result.request_id, original(result.request_id)) or (result.life, result.request_id) in ids
    ]
    if not found:
        hint = instead_of(request, (result.request_id for result in analysis.lookups))
        raise UsageError(f"{request}: the capture has no lookup of a request with this id{'; ' if hint else ''}{hint}")
    return [_story(capture, analysis, result) for result in found]


def _story(capture: Capture, analysis: Analysis, result: LookupResult) -> Story:
    unit = read_settings(capture.lives[result.life].attributes, f"replica {result.replica}").hash_block
    looked = _where(capture.lookups, life=result.life, request_id=result.request_id, start=result.time)
    sources = [source for row in looked for source in hit_sources(capture, row, unit)]
    return Story(result, sorted(_moments(capture, analysis, result, sources)), sources)


def _given_out_as(request: str) -> pl.Expr:
    """Whether the API gave a request out by this id; of a completion vLLM numbers the prompts behind it."""
    known = pl.col("external_id")
    number = known.str.strip_prefix(request).str.contains(r"^-\d+$")
    return (known == request) | (known.str.starts_with(request) & number)


def _where(frame: pl.DataFrame, **equal: Any) -> Iterator[dict[str, Any]]:
    return frame.filter(*(pl.col(name) == value for name, value in equal.items())).iter_rows(named=True)


def _moments(
    capture: Capture, analysis: Analysis, result: LookupResult, sources: Sequence[HitSource]
) -> Iterator[Moment]:
    name = result.request_id
    yield from _before(analysis, result)
    for producer in {result.producer, *_producers(result), *(source.request for source in sources)} - {None, name}:
        yield from _stores(capture.stores, result.life, str(producer), until=result.time)
    yield from departed(result)
    for row in _where(capture.requests, life=result.life, request_id=name):
        yield from _life(row, name)
        if says := _routed(result):
            yield Moment(row["start"], name, says)
    for row in _where(capture.lookups, life=result.life, request_id=name):
        yield Moment(row["start"], name, _lookup(row))
    yield from _stores(capture.stores, result.life, name)
    for row in _where(capture.evicts, life=result.life, evictor_request_id=name):
        gone = counted_blocks(len(row["fingerprints"]) // FINGERPRINT_BYTES)
        takers = sorted({taker for taker in takers_of(row["evictor_groups"], 1) if taker is not None})
        given = f" for group{'s' if len(takers) > 1 else ''} {', '.join(map(str, takers))}" if takers else ""
        yield Moment(row["start"], name, f"pushed out {gone} of group {row['group']}{given}")


def departed(result: LookupResult) -> Iterator[Moment]:
    """Yield what the lookup missed because it had gone, at the time it went; rows that one cause would repeat are one.

    Who was given the blocks and how long before the lookup stand in the row's other columns.
    """
    told: dict[tuple[str, str, int | None], list[Mapping[str, Any]]] = {}
    for fact in result.facts:
        if "before_ms" in fact.data:
            cause = (fact.data["replica"], fact.data.get("evictor") or "-", fact.data.get("evictor_group"))
            told.setdefault(cause, []).append(fact.data)
    for (replica, evictor, taker), rows in told.items():
        groups = ", ".join(map(str, sorted({group for row in rows for group in row["groups"]})))
        first, last = (pick(row["before_ms"] for row in rows) for pick in (max, min))
        if "evictor" in rows[0]:
            says = f"{replica} gave blocks of group{'s' if ', ' in groups else ''} {groups} away" + (
                "" if taker is None else f" to group {taker}"
            )
            idle = sorted(row["idle_ms"] for row in rows if "idle_ms" in row)
            if idle:
                says += f", unused for {' to '.join(dict.fromkeys(f'{each:,}' for each in (idle[0], idle[-1])))} ms"
        else:
            says = f"{replica} lost its cache"
        if first != last:
            says += f"; the last of them {round(first - last, 3):,} ms later"
        yield Moment(result.time - round(first * 1e6), evictor, says)


def _routed(result: LookupResult) -> str:
    """Say what the router did; "" where there is none."""
    parts = []
    if result.endpoint:
        by = f" by {result.routing_logic}" if result.routing_logic else ""
        parts.append(f"was sent to {result.endpoint}{by}")
    if result.router_hit_tokens is not None:
        best = result.hit_tokens if result.best_hit_tokens is None else result.best_hit_tokens
        parts.append(
            f"the router saw {counted(result.router_hit_tokens)} cached, the best replica would have hit {number(best)}"
        )
    return "; ".join(parts)


def _producers(result: LookupResult) -> Iterable[str]:
    return [fact.data["producer"] for fact in result.facts if fact.data.get("producer")]


def counted_blocks(blocks: int) -> str:
    """Write a number of blocks with its unit."""
    return f"{number(blocks)} block{'' if blocks == 1 else 's'}"


def _before(analysis: Analysis, result: LookupResult) -> Iterator[Moment]:
    """Yield the earlier requests of the family."""
    family = [
        other
        for other in analysis.lookups
        if other.family == result.family and other is not result and other.time < result.time
    ]
    for other in sorted(family, key=lambda each: each.time)[-RELATIVES:]:
        hit = f"hit {number(other.hit_tokens)} of {counted(other.prompt_tokens)}"
        yield Moment(other.time, other.request_id, f"{hit} on {other.replica}")


def _life(row: Mapping[str, Any], name: str) -> Iterator[Moment]:
    start = row["start"]
    yield Moment(start, name, "arrived" + (f" (API id {row['external_id']})" if row["external_id"] else ""))
    if row["queue_duration"] is not None:
        yield Moment(start + round(row["queue_duration"] * 1e9), name, "was scheduled for the first time")
    if row["time_to_first_token"] is not None:
        yield Moment(start + round(row["time_to_first_token"] * 1e9), name, "had its first token")
    tokens = "" if row["output_tokens"] is None else f" after {counted(row['output_tokens'])}"
    preempted = f", preempted {row['preemptions']} times" if row["preemptions"] else ""
    yield Moment(row["end"], name, f"ended{tokens} ({row['finish_reason'] or 'no reason known'}{preempted})")


def _lookup(row: Mapping[str, Any]) -> str:
    says = f"looked up {counted(row['prompt_tokens'])}, hit {number(row['hit_tokens'])}"
    if row["attempts"] > 1:
        says += f", {row['attempts']} times until {milliseconds(row['end'] - row['start'])} ms later"
    if row["admitted"]:
        return f"{says}, and was admitted with {number(row['admitted_tokens'] or 0)} computed"
    return f"{says}, and was not admitted"


def _stores(stores: pl.DataFrame, life: int, request: str, until: int | None = None) -> Iterator[Moment]:
    """Yield what a request stored, up to a time; groups that did the same share a moment."""
    told: dict[tuple[int, str], list[int]] = {}
    for row in _where(stores, life=life, request_id=request):
        if until is None or row["start"] <= until:
            told.setdefault((row["start"], _store(row)), []).append(row["group"])
    for (time, says), groups in told.items():
        listed = ", ".join(map(str, groups))
        yield Moment(time, request, f"group{'s' if len(groups) > 1 else ''} {listed}{says}")


def _store(row: Mapping[str, Any]) -> str:
    chunk = (
        ""
        if row["chunk_end"] is None
        else f" of the chunk {number(row['chunk_start'] or 0)} to {number(row['chunk_end'])}"
    )
    parts = [
        f"{what} {row[column]}"
        for column, what in (("stored", "stored"), ("masked", "refused"), ("not_materialized", "never made"))
        if row[column]
    ]
    return f"{chunk}: {', '.join(parts) or 'nothing'}"
