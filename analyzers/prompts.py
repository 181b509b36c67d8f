"""Prompts as the evidence names them: chains of fingerprints, rebuilt for every request."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_count, common_mark

UNKNOWN = 0
"""Stands for a fingerprint that the capture does not hold."""

Chain = list[int]
"""The identity at every hash block from the start. Chains share the numbers that their common prefixes are."""


CHAIN_COLUMNS = (
    "hit_tokens", "prompt_tokens", "values", "hit_fingerprint", "ladder", "prompt_digest", "key", "lora", "salt",
)  # fmt: skip
"""Columns of `Capture.lookups` that a prompt's chain is read from."""

Kind = tuple[str, int, int]
"""Replicas of one kind name a prompt alike; those with the same first part what is beside its chain."""


def identities(values: bytes, key: bytes) -> Chain:
    """Return the identities of concatenated fingerprints under a key digest: equal where prefix and key are.

    A key is mixed in by exclusive or, so identities of different keys meet only where fingerprints collide.
    """
    if len(values) % FINGERPRINT_BYTES:
        values = values[: len(values) // FINGERPRINT_BYTES * FINGERPRINT_BYTES]
    found = array("Q", values)
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
        after: beyond so many tokens it is also named on the common grid, at `marks` positions of that.
        common: their identities, where they are kept.
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
    after: int = 0
    marks: int = 0
    common: Sequence[int] = ()

    @property
    def mix(self) -> int:
        """What the key does to every identity, by exclusive or; 0 without a key."""
        return mix_of(self.key) if self.key else 0

    def extend(self, settings: Settings, first: int, values: bytes) -> int:
        """Append what a store names from position `first` on; return the index of the first new entry."""
        begin = len(self.chain)
        start = first // settings.hash_block - 1
        if start > begin:
            self.chain.extend([UNKNOWN] * (start - begin))
        fresh = identities(values, self.key)[len(self.chain) - start :]
        begin = len(self.chain)
        self.chain.extend(fresh)
        return begin


class PromptBook:
    """Rebuilds chains: a lookup names only what lies beyond its hit, the rest was named by whoever stored it."""

    def __init__(self, hits: set[int] | None = None) -> None:
        """Begin with none; `hits`: the identities at which lookups hit, where all are known in advance."""
        # The first chain that named each identity at which somebody may hit.
        self._where: dict[int, Chain] = {}
        self._hits = hits

    def read(self, settings: Settings, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row of `Capture.lookups`."""
        prompt = self.read_chain(settings, *(row[column] for column in CHAIN_COLUMNS))
        prompt.after = row["hit_tokens"]
        prompt.common = identities(row["common"] or b"", prompt.key)[: common_count(prompt.after, prompt.tokens)]
        prompt.marks = len(prompt.common)
        return prompt

    def read_chain(
        self,
        settings: Settings,
        hit_tokens: int,
        tokens: int,
        values: bytes | None,
        hit_fingerprint: bytes | None,
        ladder: bytes | None,
        digest: bytes | None,
        key: bytes | None,
        lora: bytes | None,
        salt: bytes | None,
    ) -> Prompt:
        """Return a lookup's prompt without what it names beside the chain, from the columns `CHAIN_COLUMNS`."""
        key = key or b""
        hit = hit_tokens // settings.hash_block
        chain = self._below(hit_fingerprint or b"", ladder or b"", key, hit) if hit else []
        if values:
            chain.extend(identities(values, key))
        self._remember(chain, hit)
        whole = identities(digest, key)[0] if digest and len(digest) >= FINGERPRINT_BYTES else UNKNOWN
        return Prompt(chain, tokens, whole, key, lora or b"", salt or b"")

    def extend(self, prompt: Prompt, settings: Settings, first: int, values: bytes) -> int:
        """Append what a store names from position `first` on; return the index of the first new entry."""
        begin = prompt.extend(settings, first, values)
        self._remember(prompt.chain, begin)
        return begin

    def _below(self, hit_fingerprint: bytes, ladder: bytes, key: bytes, hit: int) -> Chain:
        at_hit = identities(hit_fingerprint, key)
        if at_hit:
            known = self._where.get(at_hit[0], [])
            if len(known) >= hit and known[hit - 1] == at_hit[0]:
                return known[:hit]
        chain = [UNKNOWN] * hit
        for rung, identity in enumerate(identities(ladder, key)):
            if 2**rung < hit:
                chain[2**rung - 1] = identity
        if at_hit:
            chain[hit - 1] = at_hit[0]
        return chain

    def _remember(self, chain: Chain, begin: int) -> None:
        where = self._where
        named = chain[begin - 1 :] if begin > 1 else chain
        if self._hits is not None:
            named = list(self._hits.intersection(named))
        if not named:
            return
        fresh = dict.fromkeys(named, chain)
        if not where.keys().isdisjoint(fresh):
            fresh = {identity: chain for identity in fresh if identity not in where}
        fresh.pop(UNKNOWN, None)
        where.update(fresh)


def kind_of(settings: Settings) -> Kind:
    """Return what two replicas must have in common for their fingerprints to compare."""
    return (settings.fingerprint_key_id, settings.hash_block, settings.lookahead)


def marks_of(prompt: Prompt, settings: Settings) -> Iterator[tuple[int, int]]:
    """Yield (end of the tokens it covers, identity) of everything that is named of `prompt`."""
    for index, identity in enumerate(prompt.chain):
        yield (index + 1) * settings.hash_block + settings.lookahead, identity
    for place, identity in enumerate(prompt.common):
        yield common_mark(prompt.after, place), identity
    if prompt.whole != UNKNOWN:
        yield prompt.tokens, prompt.whole


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
    for place in range(prompt.marks - 1, -1, -1):
        if (mark := common_mark(prompt.after, place)) <= top:
            return max(last, mark)
    return last
