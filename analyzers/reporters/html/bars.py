"""A lookup as a bar of its prompt: what was served, then each class of loss from its lower to its upper boundary."""

from typing import NamedTuple

from analyzers import model
from analyzers.model import GroupState, LookupResult

HIT = "served"
COLORS = {
    HIT: "#2e9e5b",
    model.COLD: "#8a94a6",
    model.KEY_DIFFERENCE: "#b58900",
    model.TAIL: "#b7bfcc",
    model.IN_FLIGHT: "#6f6fd8",
    model.EVICTED: "#d1495b",
    model.RESET: "#9c3848",
    model.HELD_ELSEWHERE: "#e07a1f",
    model.SPECULATIVE_DROP: "#5c84b1",
    model.ALIGNMENT: "#4aa3a2",
    model.NOT_MATERIALIZED: "#b04fa8",
    model.SHIFTED_BOUNDARY: "#e0457b",
    model.CHECKPOINT_EVICTED: "#f2a3ad",
    model.DISCARDED: "#7d5a3c",
    model.SKIPPED: "#4d4d4d",
    model.EXTERNAL: "#7fc97f",
    model.UNEXPLAINED: "#f7d000",
    model.UNKNOWN: "#dddd77",
}


class Segment(NamedTuple):
    """Tokens from `lower` to `upper` of a prompt, and what became of them."""

    cls: str
    lower: int
    upper: int


class Mark(NamedTuple):
    """A position, in tokens, at which a group had its state."""

    position: int
    says: str


def segments(lookup: LookupResult) -> list[Segment]:
    """Return the bar of a lookup; its segments follow one another from 0 to the end of the prompt."""
    bar = [Segment(HIT, 0, lookup.hit_tokens)]
    at = lookup.hit_tokens
    for cls in (model.DISCARDED, model.EXTERNAL):
        if tokens := lookup.lost.get(cls, 0):
            bar.append(Segment(cls, at, at + tokens))
            at += tokens
    rest = [
        Segment(cls, max(lower, at), upper)
        for cls, upper, lower in sorted(lookup.ladder, key=lambda step: step[2])
        if upper > at
    ]
    if not _continues(rest, at, lookup.prompt_tokens):
        # The ladder is not known, or not the hit's: then only how much was lost to what.
        rest = []
        for cls in reversed(model.CLASSES):
            tokens = 0 if cls in (model.DISCARDED, model.EXTERNAL) else max(0, lookup.lost.get(cls, 0))
            if tokens:
                rest.append(Segment(cls, at, at + tokens))
                at += tokens
    return [segment for segment in (*bar, *rest) if segment.upper > segment.lower]


def _continues(rest: list[Segment], at: int, end: int) -> bool:
    for segment in rest:
        if segment.lower != at:
            return False
        at = segment.upper
    return at == end


def marks(group: GroupState) -> list[Mark]:
    """Return where a group had its state, as far as it is known: around the boundary that was needed."""
    found = []
    for position, side in ((group.stored_below, "at or below"), (group.stored_above, "above")):
        if position is not None:
            found.append(Mark(position, f"state at {position:,}, the nearest {side} the needed boundary"))
    return found
