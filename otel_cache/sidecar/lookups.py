"""What a lookup's span and its groups' spans say. All lengths and positions in tokens."""

from collections.abc import Iterator
from functools import lru_cache

from otel_cache.records import Lookup
from otel_cache.semconv import names
from otel_cache.sidecar.encoding import encode_bytes, encode_fingerprints
from otel_cache.sidecar.resource import Settings
from otel_cache.sidecar.spans import Value
from otel_cache.sidecar.verdict import Verdict


def summary(lookup: Lookup, verdict: Verdict, settings: Settings) -> str:
    """Return one sentence that says what the lookup found and what limited it."""
    reason = verdict.reason
    head = f"hit {lookup.hit} of {lookup.tokens}: "
    if reason == names.LIMITED_BY_SKIPPED:
        return f"no lookup: all {lookup.tokens} tokens are to be computed"
    if reason == names.LIMITED_BY_NONE:
        return head + "the longest that the hit grid allows"
    if reason == names.LIMITED_BY_GROUP_STATE:
        return head + _missing_state(lookup, verdict, settings)
    if reason == names.LIMITED_BY_SPECULATIVE_DROP:
        dropped = max(each.dropped for each in lookup.passes)
        return head + f"speculation drops {dropped} tokens of the {lookup.hit + dropped} that were found"
    if reason == names.LIMITED_BY_ALIGNMENT:
        nearest = min(above for above in lookup.above if above is not None)
        return head + f"state exists at {nearest}, where no hit may end"
    return head + ("nothing beyond the hit is cached" if lookup.hit else "no group has cached this prefix")


def lookup_attributes(
    lookup: Lookup, verdict: Verdict, settings: Settings, attempts: int, admitted: int | None
) -> dict[str, Value]:
    """Return the attributes of a lookup span; `admitted` is what admission found computed, None: not admitted."""
    attributes: dict[str, Value] = {
        names.REQUEST_ID: lookup.request,
        names.LOOKUP_PROMPT_TOKENS: lookup.tokens,
        names.LOOKUP_HIT_TOKENS: lookup.hit,
        names.LOOKUP_MAX_HIT_TOKENS: lookup.limit,
        names.LOOKUP_LONGEST_GROUP_HIT_TOKENS: max(verdict.hits.values(), default=0),
        names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS: lookup.uncached,
        names.LOOKUP_LIMITING_GROUPS: verdict.limiting if lookup.uncached > 0 else [],
        names.LOOKUP_LIMITED_BY: verdict.reason,
        names.LOOKUP_ATTEMPTS: attempts,
        names.LOOKUP_ADMITTED: admitted is not None,
        names.LOOKUP_SKIPPED: lookup.skipped,
        names.LOOKUP_SUMMARY: summary(lookup, verdict, settings),
    }
    if lookup.connector:
        attributes[names.LOOKUP_CONNECTOR] = True
    if admitted is not None:
        attributes[names.LOOKUP_ADMITTED_TOKENS] = admitted
        if admitted > lookup.hit:
            attributes[names.LOOKUP_EXTERNAL_TOKENS] = admitted - lookup.hit
        elif admitted < lookup.hit:
            attributes[names.LOOKUP_DISCARDED_TOKENS] = lookup.hit - admitted
    _add_fingerprints(attributes, lookup, settings)
    _add_keys(attributes, lookup)
    return attributes


def _add_fingerprints(attributes: dict[str, Value], lookup: Lookup, settings: Settings) -> None:
    if lookup.fingerprints:
        if settings.hash_block:
            attributes[names.FINGERPRINT_FIRST] = (lookup.hit // settings.hash_block + 1) * settings.hash_block
        attributes[names.FINGERPRINT_VALUES] = encode_fingerprints(lookup.fingerprints)
    if lookup.hit_fingerprint:
        attributes[names.FINGERPRINT_HIT] = encode_bytes(lookup.hit_fingerprint)
    if lookup.ladder:
        attributes[names.FINGERPRINT_LADDER] = encode_fingerprints(lookup.ladder)
    if lookup.common:
        attributes[names.FINGERPRINT_COMMON] = encode_fingerprints(lookup.common)
    if lookup.digest:
        attributes[names.FINGERPRINT_PROMPT] = encode_bytes(lookup.digest)
    if lookup.plain:
        attributes[names.FINGERPRINT_PLAIN] = encode_fingerprints(lookup.plain)


def _add_keys(attributes: dict[str, Value], lookup: Lookup) -> None:
    if lookup.key:
        attributes[names.KEY_DIGEST] = encode_bytes(lookup.key)
    if lookup.lora:
        attributes[names.KEY_LORA] = encode_bytes(lookup.lora)
    if lookup.salt:
        attributes[names.KEY_SALT] = encode_bytes(lookup.salt)
    if lookup.items:
        attributes[names.KEY_ITEM_OFFSETS] = [offset for offset, _ in lookup.items]
        attributes[names.KEY_ITEM_DIGESTS] = [encode_bytes(digest) for _, digest in lookup.items]


def group_attributes(lookup: Lookup, settings: Settings) -> Iterator[dict[str, Value]]:
    """Yield the attributes of each group lookup span: one for the groups that were looked up together."""
    together: dict[tuple[int, ...], tuple[list[int], list[int], list[int], list[int]]] = {}
    for each in lookup.passes:
        groups = tuple(each.groups)
        if (passes := together.get(groups)) is None:
            passes = together[groups] = [], [], [], []
        for number, row in zip((each.asked, each.hit, each.dropped, each.alignment), passes, strict=True):
            row.append(number)
    for groups, (asked, hit, dropped, alignment) in together.items():
        first = groups[0] if groups else -1
        attributes: dict[str, Value] = {
            names.REQUEST_ID: lookup.request,
            names.GROUP_IDS: list(groups),
            names.GROUP_HIT_TOKENS: hit[-1],
            names.GROUP_PASS_ASKED: asked,
            names.GROUP_PASS_HIT: hit,
            names.GROUP_PASS_DROPPED: dropped,
            names.GROUP_PASS_ALIGNMENT: alignment,
        }
        if kind := settings.kind(first):
            attributes[names.GROUP_KIND] = kind
        if block_size := settings.block_size(first):
            attributes[names.GROUP_BLOCK_SIZE] = block_size
        # The first pass is the only one that was not yet cut to what other groups hold.
        if below := hit[0] + dropped[0]:
            attributes[names.GROUP_STORED_BELOW] = below
        if 0 <= first < len(lookup.above) and (above := lookup.above[first]) is not None:
            attributes[names.GROUP_STORED_ABOVE] = above
        yield attributes


def _missing_state(lookup: Lookup, verdict: Verdict, settings: Settings) -> str:
    hits, limiting = verdict.hits, verdict.limiting
    position = lookup.hit + lookup.uncached if lookup.uncached > 0 else max(hits.values(), default=0)
    if not limiting:
        return f"the prefix up to {position} is shared, but no hit can end there"
    holders = sorted([group for group, hit in hits.items() if hit >= position and group not in limiting])
    text = f"{_name_groups(tuple(limiting), settings.kinds, 'has', 'have')} no state at {position}"
    return f"{text}, which {_name_groups(tuple(holders), settings.kinds, 'holds', 'hold')}" if holders else text


@lru_cache(maxsize=1024)
def _name_groups(groups: tuple[int, ...], kinds: tuple[str, ...], one: str, several: str) -> str:
    named = dict.fromkeys(kinds[group] for group in groups if 0 <= group < len(kinds) and kinds[group])
    kind = f" ({', '.join(named)})" if named else ""
    numbers = ",".join(map(str, groups))
    return f"group {numbers}{kind} {one}" if len(groups) == 1 else f"groups {numbers}{kind} {several}"
