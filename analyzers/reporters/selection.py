"""Which lookups and sequences a report shows, and the three heaps that a prompt's tokens fall into."""

from collections.abc import Mapping, Sequence
from typing import Literal

from analyzers.model import BY_DESIGN, CLASSES, SERVED, UNEXPLAINED, UNKNOWN, Analysis, LookupResult, Sequence_

Lookups = Literal["all", "losing", "none"]

MAX_ROWS = 50
"""Rows of a list that is shown without having been asked for in full."""
MAX_PLAIN = 5
"""Sequences that are shown though nothing avoidable was lost in them."""
UNCERTAIN = frozenset({UNKNOWN, UNEXPLAINED})
"""Classes that say nothing about the cache, only about the evidence: neither by design nor avoidable."""


def select_lookups(analysis: Analysis, lookups: Lookups) -> Sequence[LookupResult]:
    """Return all lookups, those that lost more than is by design, or none; in their order."""
    if lookups == "none":
        return []
    if lookups == "all":
        return analysis.lookups
    return [lookup for lookup in analysis.lookups if any(avoidable(lookup.lost).values()) or doubtful(lookup)]


def select_sequences(analysis: Analysis) -> list[Sequence_]:
    """Return the sequences with something to say, then a few of the others; both in time."""
    telling = [sequence for sequence in analysis.sequences if sequence.cause][:MAX_ROWS]
    return telling + [sequence for sequence in analysis.sequences if not sequence.cause][:MAX_PLAIN]


def worst(lookups: Sequence[LookupResult], most: int = MAX_ROWS) -> list[LookupResult]:
    """Return the lookups that lost most, at most so many, in their own order."""

    def lost(index: int) -> int:
        counted = {**avoidable(lookups[index].lost), **uncertain(lookups[index].lost)}
        return sum(map(abs, counted.values()))

    ranked = sorted(range(len(lookups)), key=lambda index: (-lost(index), index))[:most]
    return [lookups[index] for index in sorted(ranked)]


def brought(lost: Mapping[str, int]) -> dict[str, int]:
    """Return what others brought: no hit, and nothing to compute either."""
    return {name: tokens for name, tokens in lost.items() if name in SERVED}


def by_design(lost: Mapping[str, int]) -> dict[str, int]:
    """Return the losses that no setting would have saved."""
    return {name: tokens for name, tokens in lost.items() if name in BY_DESIGN}


def avoidable(lost: Mapping[str, int]) -> dict[str, int]:
    """Return the losses that another setting, or more room, would have saved."""
    return {name: tokens for name, tokens in lost.items() if name not in BY_DESIGN | UNCERTAIN | SERVED}


def uncertain(lost: Mapping[str, int]) -> dict[str, int]:
    """Return the losses that the evidence does not explain. `unexplained` is below 0 where more was hit."""
    return {name: tokens for name, tokens in lost.items() if name in UNCERTAIN}


def doubtful(lookup: LookupResult) -> bool:
    """Return whether the evidence does not account for every token of the lookup."""
    return any(uncertain(lookup.lost).values())


def ordered(lost: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return losses in the order of the ladder, those without a token left out."""
    return [(name, lost[name]) for name in (*CLASSES, *sorted(set(lost) - set(CLASSES))) if lost.get(name)]


def heaps(lost: Mapping[str, int]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return title and classes of each heap that lost tokens fall into; those without a token only if avoidable."""
    found = (
        ("brought by a connector", brought(lost)),
        ("lost by design", by_design(lost)),
        ("avoidable", avoidable(lost)),
        ("not accounted for", uncertain(lost)),
    )
    return [(title, ordered(losses)) for title, losses in found if any(losses.values()) or title == "avoidable"]
