"""Families: requests that share most of a prefix, on any replica."""

from collections.abc import Mapping, Sequence

from analyzers.replay import Replayed

SHARE = 0.5
"""Share of the shorter prompt that two requests of a family have in common: one system prompt makes no family."""


def families_of(replayed: Sequence[Replayed]) -> Mapping[tuple[int, str], str]:
    """Return the family of each request, by life and request id: the request id of the first member."""
    family: list[str] = []
    by_name: dict[tuple[int, str], str] = {}
    for one in replayed:
        name = (one.row.life, one.row.request_id)
        if (found := by_name.get(name)) is None:
            found = name[1]
            if one.relative is not None:
                shorter = min(one.prompt.tokens, replayed[one.relative].prompt.tokens)
                if one.shared >= SHARE * shorter:
                    found = family[one.relative]
            by_name[name] = found
        family.append(found)
    return by_name
