"""Changes: what a fix sets to which value, whatever its sentences say, and what findings with one change give together.

A fix is told to a reader in sentences, which name one finding's boundaries and prices. Two findings have one fix where
they ask for the same change.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """What is to be changed.

    Attributes:
        settings: names and values; a change that is no setting of vLLM's has a name as well, and the value "".
        says: the change alone, in words.

    """

    settings: tuple[tuple[str, str], ...]
    says: str


@dataclass(frozen=True)
class Fix:
    """What to do about a finding.

    Attributes:
        says: what to change and what that does, in words.
        change: None: nothing that another finding could ask for in other words.
        regained: tokens that the fix gives back by itself; None: all that was lost, as far as is known.

    """

    says: str
    change: Change | None = None
    regained: int | None = None


@dataclass(frozen=True)
class Given:
    """What the fix of one finding gives back."""

    tokens: int
    says: str
    change: Change | None


def together(given: Iterable[Given]) -> list[tuple[int, str]]:
    """Return what each change gives back, in tokens, and how it is told; most first.

    The fix of one finding is told in its own words. Where several with other words ask for one change, it is told
    alone, with what each of them gives back.
    """
    found: dict[object, list[Given]] = {}
    for each in given:
        if each.tokens > 0:
            found.setdefault(each.change.settings if each.change else each.says, []).append(each)
    sums = [(sum(each.tokens for each in alike), _told(alike)) for alike in found.values()]
    return sorted(sums, key=lambda each: -each[0])


def _told(alike: list[Given]) -> str:
    alike = sorted(alike, key=lambda each: -each.tokens)
    if len({each.says for each in alike}) == 1:
        return alike[0].says
    ways = dict.fromkeys(each.change.says for each in alike if each.change)
    parts = [f"{each.tokens:,}" for each in alike]
    said = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{', and '.join(ways)}: the fix of {len(alike)} findings, which give back {said}"
