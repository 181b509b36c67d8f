"""Families: requests that share most of a prefix, on any replica."""

from collections.abc import Sequence
from dataclasses import replace

from analyzers.model import LookupResult
from analyzers.replay import Replayed

SHARE = 0.5
"""Share of the shorter prompt that two requests of a family have in common: one system prompt makes no family."""


def with_families(replayed: Sequence[Replayed], results: Sequence[LookupResult]) -> list[LookupResult]:
    """Return the results with their family: the request id of the first member."""
    family: list[str] = []
    by_name: dict[tuple[int, str], str] = {}
    for one in replayed:
        relative = one.relative
        name = (one.row["life"], one.row["request_id"])
        if name in by_name:
            family.append(by_name[name])
            continue
        found = one.row["request_id"]
        if relative is not None:
            shorter = min(one.prompt.tokens, replayed[relative].prompt.tokens)
            if one.shared >= SHARE * shorter:
                found = family[relative]
        family.append(found)
        by_name[name] = found
    return [replace(result, family=by_name[result.life, result.request_id]) for result in results]
