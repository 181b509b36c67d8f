"""Sequences: sends of one prompt on one replica, with the earlier prompt that it grew out of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from analyzers.model import LookupResult, Sequence_
from analyzers.prompts import UNKNOWN, last_mark
from analyzers.replay import Replayed

Shape = Literal["identical", "extension", "divergence"]


@dataclass
class _Family:
    members: list[int]
    parent: int | None
    shape: Shape
    shared: int


def sequences(replayed: Sequence[Replayed], results: Sequence[LookupResult]) -> list[Sequence_]:
    """Return the sequences of a capture, by time of their first request.

    A sequence is every send of one prompt (`identical`), led by the earlier request that shares the longest prefix
    with it where there is one: `extension` if this prompt contains all of that one's, `divergence` if it leaves it.
    An extension of the last member of an extension joins it, so that a conversation is one sequence; so does a
    prompt that leaves a divergence's member where that one left its own parent: they are siblings.

    Args:
        replayed: the lookups, in order.
        results: one result per request.

    """
    result_of = {(result.life, result.request_id): result for result in results}
    families: list[_Family] = []
    by_prompt: dict[tuple[int, int], _Family] = {}
    for index, one in enumerate(replayed):
        name = (one.row["life"], one.row["request_id"])
        if one.row["start"] != result_of[name].time or one.row["skipped"]:
            continue
        key = (one.row["life"], one.prompt.whole)
        if one.prompt.whole != UNKNOWN and key in by_prompt:
            by_prompt[key].members.append(index)
            continue
        family = _new_family(index, one, replayed)
        previous = _continued(family, families)
        if previous:
            previous.members.append(index)
            family = previous
        else:
            families.append(family)
        by_prompt[key] = family
    found = []
    for family in families:
        chosen = ([family.parent] if family.parent is not None else []) + family.members
        rows = [result_of[replayed[i].row["life"], replayed[i].row["request_id"]] for i in chosen]
        if len(rows) > 1:
            found.append(_sequence(family, rows))
    return found


def _new_family(index: int, one: Replayed, replayed: Sequence[Replayed]) -> _Family:
    relative = one.relative
    if relative is None or one.shared < one.settings.alignment:
        return _Family([index], None, "identical", 0)
    other = replayed[relative]
    if other.row["life"] != one.row["life"] or other.row["request_id"] == one.row["request_id"]:
        return _Family([index], None, "identical", 0)
    longer = one.prompt.tokens > other.prompt.tokens and one.shared >= last_mark(other.prompt, other.settings)
    return _Family([index], relative, "extension" if longer else "divergence", one.shared)


def _continued(family: _Family, families: Sequence[_Family]) -> _Family | None:
    """Return the family that `family` goes on; None: it is one of its own."""
    for known in reversed(families):
        if known.shape == family.shape == "extension" and known.members[-1] == family.parent:
            return known
        siblings = family.parent in known.members or family.parent == known.parent
        if known.shape == family.shape == "divergence" and known.shared == family.shared and siblings:
            return known
    return None


def _sequence(family: _Family, rows: Sequence[LookupResult]) -> Sequence_:
    hits = [row.hit_tokens for row in rows]
    own = rows if family.parent is None else rows[1:]
    return Sequence_(
        requests=[row.request_id for row in rows],
        shape=family.shape,
        hits=hits,
        pattern=pattern(hits),
        cause=next((row.cause for row in own if row.cause), ""),
    )


def pattern(hits: Sequence[int]) -> str:
    """Name the pattern of hits (tokens) in time: `miss-miss-hit`, `short-then-full`, `never hits`, ...

    A run of equal ends is written once: 0, 0, 9600, 9600 is miss-miss-hit.
    """
    words = ["hit" if hit else "miss" for hit in hits]
    if "hit" not in words:
        return "never hits"
    positive = [hit for hit in hits if hit]
    if words[0] == "miss" and "miss" not in words[1:] and any(a < b for a, b in pairwise(positive)):
        return "short-then-full"
    while len(words) > 1 and words[-1] == words[-2]:
        words.pop()
    return "-".join(words)
