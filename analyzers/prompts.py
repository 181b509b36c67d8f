"""Prompts as the evidence names them: chains of fingerprints, rebuilt for every request."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_grid

UNKNOWN = 0
"""Stands for a fingerprint that the capture does not hold."""

Chain = list[int]
"""The identity at every hash block from the start. Chains share the numbers that their common prefixes are."""


def identities(values: bytes, key: bytes) -> Chain:
    """Return the identities of concatenated fingerprints under a key digest: equal where prefix and key are.

    A key is mixed in by exclusive or, so identities of different keys meet only where fingerprints collide.
    """
    found = array("Q")
    found.frombytes(values[: len(values) // FINGERPRINT_BYTES * FINGERPRINT_BYTES])
    if key:
        mix = mix_of(key)
        return [identity ^ mix for identity in found]
    return found.tolist()


def mix_of(key: bytes) -> int:
    """Return what a key digest does to an identity, by exclusive or; 0 without a key."""
    return int.from_bytes(key[:FINGERPRINT_BYTES].ljust(FINGERPRINT_BYTES, b"\0"), "little") if key else 0


@dataclass(slots=True)
class Prompt:
    """One request's tokens as far as they are named.

    Attributes:
        chain: the identity at every hash block from the start, `UNKNOWN` where the capture lacks it.
        ends: of the tokens that `common` covers, ascending.
        common: identities of all that a lookup names beside the chain.
        tokens: tokens of the request at its lookup.
        whole: identity of all of them; `UNKNOWN` where it is not named.
        key: digest of the extra keys; `lora` and `salt` are those of the adapter and of the cache salt alone.

    """

    chain: Chain
    tokens: int = 0
    whole: int = UNKNOWN
    key: bytes = b""
    lora: bytes = b""
    salt: bytes = b""
    ends: Sequence[int] = ()
    common: Sequence[int] = ()
    mix: int = field(init=False)

    def __post_init__(self) -> None:
        """Work out what the key does to every identity, by exclusive or; 0 without a key."""
        self.mix = mix_of(self.key)

    def forget_common(self) -> None:
        """Keep of what is named beside the chain only what `last_mark` needs."""
        self.common, self.ends = (), self.ends[-2:]


class PromptBook:
    """Rebuilds chains: a lookup names only what lies beyond its hit, the rest was named by whoever stored it."""

    def __init__(self) -> None:
        # The first chain that named each identity.
        self._where: dict[int, Chain] = {}

    def read(self, settings: Settings, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row of `Capture.lookups`."""
        key = row["key"] or b""
        hit = row["hit_tokens"] // settings.hash_block
        chain = self._below(row, key, hit)
        chain.extend(identities(row["values"] or b"", key))
        self._remember(chain, hit)
        common = identities(row["common"] or b"", key)
        ends = common_grid(row["hit_tokens"], row["prompt_tokens"])
        whole = identities(row["prompt_digest"] or b"", key)
        return Prompt(
            chain=chain,
            tokens=row["prompt_tokens"],
            whole=whole[0] if whole else UNKNOWN,
            key=key,
            lora=row["lora"] or b"",
            salt=row["salt"] or b"",
            ends=ends[: len(common)],
            common=common[: len(ends)],
        )

    def extend(self, prompt: Prompt, settings: Settings, first: int, values: bytes) -> int:
        """Append what a store names from position `first` on; return the index of the first new entry."""
        start = first // settings.hash_block - 1
        if start > len(prompt.chain):
            prompt.chain.extend([UNKNOWN] * (start - len(prompt.chain)))
        fresh = identities(values, prompt.key)[len(prompt.chain) - start :]
        begin = len(prompt.chain)
        prompt.chain.extend(fresh)
        self._remember(prompt.chain, begin)
        return begin

    def _below(self, row: Mapping[str, Any], key: bytes, hit: int) -> Chain:
        if not hit:
            return []
        at_hit = identities(row["hit_fingerprint"] or b"", key)
        if at_hit:
            known = self._where.get(at_hit[0], [])
            if len(known) >= hit and known[hit - 1] == at_hit[0]:
                return known[:hit]
        chain = [UNKNOWN] * hit
        for rung, identity in enumerate(identities(row["ladder"] or b"", key)):
            if 2**rung < hit:
                chain[2**rung - 1] = identity
        if at_hit:
            chain[hit - 1] = at_hit[0]
        return chain

    def _remember(self, chain: Chain, begin: int) -> None:
        fresh = set(chain[max(begin - 1, 0) :]).difference(self._where)
        fresh.discard(UNKNOWN)
        self._where.update(dict.fromkeys(fresh, chain))


def marks_of(prompt: Prompt, settings: Settings) -> Iterator[tuple[int, int]]:
    """Yield (end of the tokens it covers, identity) of everything that is named of `prompt`."""
    for index, identity in enumerate(prompt.chain):
        yield (index + 1) * settings.hash_block + settings.lookahead, identity
    yield from zip(prompt.ends, prompt.common, strict=True)
    if prompt.whole != UNKNOWN:
        yield prompt.tokens, prompt.whole


def plain_marks(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return (position, identity) of the tokens alone, where multimodal items make the other fingerprints differ."""
    values = identities(row["plain"] or b"", b"")
    return list(zip(common_grid(row["hit_tokens"], row["prompt_tokens"]), values, strict=False))


def common_prefix(one: Chain, other: Chain) -> int:
    """Return how many entries two chains share from the start: equal at one place means equal before it."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1] != UNKNOWN:
            low = middle
        else:
            high = middle - 1
    return low


def contains(prompt: Prompt, other: Prompt) -> bool:
    """Whether `prompt` holds all of `other`, as far as hash blocks tell."""
    return prompt.tokens >= other.tokens and common_prefix(prompt.chain, other.chain) == len(other.chain)


def last_mark(prompt: Prompt, settings: Settings) -> int:
    """Return how many tokens of `prompt` its last fingerprint covers that another prompt can have too.

    That is on the replica's own grid and on the common one; the fingerprint of the whole prompt is not on a grid.
    """
    named = prompt.whole != UNKNOWN
    top = prompt.tokens - 1 if named else prompt.tokens
    blocks = min(len(prompt.chain), (top - settings.lookahead) // settings.hash_block)
    last = blocks * settings.hash_block + settings.lookahead if blocks > 0 else 0
    place = bisect_right(prompt.ends, top)
    return max(last, prompt.ends[place - 1]) if place else last
