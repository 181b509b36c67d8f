"""What kept a lookup's hit from being longer, as far as the lookup alone can tell. All lengths in tokens."""

import msgspec

from otel_cache.records import Lookup
from otel_cache.semconv import names


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Why a hit ended where it did.

    `reason` is one of the values of `limited_by`; `hits` the longest hit of each group; `limiting` the groups that
    gave less than they were asked for, and less than another group gave; `reach` the last position of the hit grid
    that the lookup could have hit.
    """

    reason: str
    hits: dict[int, int]
    limiting: list[int]
    reach: int


def same_outcome(one: Lookup, other: Lookup) -> bool:
    """Return whether two lookups of one request asked for the same and got the same."""
    return (
        one.tokens == other.tokens
        and one.limit == other.limit
        and one.hit == other.hit
        and one.uncached == other.uncached
        and one.skipped == other.skipped
        and one.passes == other.passes
    )


def longest_hits(lookup: Lookup) -> dict[int, int]:
    """Return the longest hit of each group over its passes: later passes only shorten it to what others hold."""
    longest: dict[int, int] = {}
    for group_pass in lookup.passes:
        hit = group_pass.hit
        for group in group_pass.groups:
            if longest.get(group, -1) < hit:
                longest[group] = hit
    return longest


def limiting_groups(lookup: Lookup, hits: dict[int, int]) -> list[int]:
    """Return the groups that gave less than they were asked for, and less than another group gave, ascending."""
    short: set[int] = set()
    for each in lookup.passes:
        if each.hit + each.dropped < each.asked:
            short.update(each.groups)
    if not short:
        return []
    longest = max(hits.values())
    return sorted([group for group in short if hits.get(group, 0) < longest])


def judge(lookup: Lookup, alignment: int) -> Verdict:
    """Return the verdict on a lookup, its reason the first of these that holds:

    - `skipped`: vLLM did not look.
    - `none`: the hit is the last position of the hit grid below the limit and the last token.
    - `group_state`: some group had more than the hit and another had not.
    - `speculative_drop`: the hit and what speculation dropped together reach the last grid position.
    - `alignment`: every group holds a state one grid step above the hit, and yet no hit could end there.
    - `no_match`: nothing more of this prompt was found.

    `alignment` is the replica's hit grid; where it is not known (0) that of the passes is taken.
    """
    grid = alignment or max([each.alignment for each in lookup.passes], default=0) or 1
    reach = max(min(lookup.limit, lookup.tokens - 1), 0) // grid * grid
    hits = longest_hits(lookup)
    limiting = limiting_groups(lookup, hits)
    return Verdict(_reason(lookup, limiting, grid, reach), hits, limiting, reach)


def _reason(lookup: Lookup, limiting: list[int], grid: int, reach: int) -> str:
    if lookup.skipped:
        return names.LIMITED_BY_SKIPPED
    if lookup.hit >= reach:
        return names.LIMITED_BY_NONE
    if lookup.uncached > 0 or limiting:
        return names.LIMITED_BY_GROUP_STATE
    dropped = max([each.dropped for each in lookup.passes], default=0)
    if dropped > 0 and lookup.hit + dropped >= reach:
        return names.LIMITED_BY_SPECULATIVE_DROP
    if lookup.above and all(above is not None and above <= lookup.hit + grid for above in lookup.above):
        return names.LIMITED_BY_ALIGNMENT
    return names.LIMITED_BY_NO_MATCH
