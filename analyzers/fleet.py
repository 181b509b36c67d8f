"""What the replicas of a fleet had in common, and what other routing would have saved."""

from collections import Counter
from collections.abc import Sequence

from analyzers.model import Fleet, LookupResult
from analyzers.residency import Residency

SHOWN_FAMILIES = 10


def fleet_of(results: Sequence[LookupResult], caches: Sequence[Residency], replicas: int) -> Fleet | None:
    """Return the sums over a fleet; None where there is one replica only.

    What routing would have saved is bounded by what was resident at each lookup's moment: a router cannot know what
    a replica would have kept had it been sent other requests.
    """
    if replicas < 2:
        return None
    by_family: Counter[str] = Counter()
    conversation = 0
    regretted = 0
    for result in results:
        if regret := result.regret_tokens:
            by_family[result.family] += regret
            regretted += 1
        if result.previous_turn_hit_tokens is not None:
            conversation += max(0, result.previous_turn_hit_tokens - result.hit_tokens)
    stored, distinct = _duplication(caches)
    return Fleet(
        regret_tokens=sum(by_family.values()),
        regretted_lookups=regretted,
        regret_by_family=sorted(by_family.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_FAMILIES],
        stored_tokens=stored,
        distinct_tokens=distinct,
        sticky_prefix_tokens=sum(by_family.values()),
        sticky_conversation_tokens=conversation,
    )


def _duplication(caches: Sequence[Residency]) -> tuple[int, int]:
    """Return the tokens of prefixes that were stored, on each replica, and counted once, whatever the replica."""
    first = [(cache.settings.dense_groups or cache.settings.groups)[0] for cache in caches]
    stored, distinct, counted = 0, 0, set[int]()
    # What replicas with blocks of several sizes stored counts as the last of them has it.
    for cache, group in zip(reversed(caches), reversed(first), strict=True):
        residency = cache.groups[group.index]
        stored += residency.remembered * group.block_size
        before = len(counted)
        counted.update(residency.held, residency.lost)
        distinct += (len(counted) - before) * group.block_size
    return stored, distinct
