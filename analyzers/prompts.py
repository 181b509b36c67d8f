"""Prompts as the evidence names them: chains of fingerprints, rebuilt for every request."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_grid

UNKNOWN = 0
"""Stands for a fingerprint that the capture does not hold."""


def identities(values: bytes, key: bytes) -> "array[int]":
    """Return the identities of concatenated fingerprints under a key digest: equal where prefix and key are.

    A key is mixed in by exclusive or, so identities of different keys meet only where fingerprints collide.
    """
    found = array("Q")
    found.frombytes(values[: len(values) // FINGERPRINT_BYTES * FINGERPRINT_BYTES])
    if key:
        mix = mix_of(key)
        return array("Q", (identity ^ mix for identity in found))
    return found


def mix_of(key: bytes) -> int:
    """Return what a key digest does to an identity, by exclusive or; 0 without a key."""
    return int.from_bytes(key[:FINGERPRINT_BYTES].ljust(FINGERPRINT_BYTES, b"\0"), "little") if key else 0


@dataclass
class Prompt:
    """One request's tokens as far as they are named.

    Attributes:
        chain: the identity at every hash block from the start, `UNKNOWN` where the capture lacks it.
        marks: (end of the tokens it covers, identity), ascending, of all that a lookup names beside the chain.
        tokens: tokens of the request at its lookup.
        whole: identity of all of them; `UNKNOWN` where it is not named.
        key: digest of the extra keys; `lora` and `salt` are those of the adapter and of the cache salt alone.

    """

    chain: "array[int]"
    marks: list[tuple[int, int]]
    tokens: int
    whole: int
    key: bytes
    lora: bytes = b""
    salt: bytes = b""

    @property
    def mix(self) -> int:
        """What the key does to every identity, by exclusive or; 0 without a key."""
        return mix_of(self.key)


class PromptBook:
    """Rebuilds chains: a lookup names only what lies beyond its hit, the rest was named by whoever stored it."""

    def __init__(self) -> None:
        self._where: dict[int, tuple[array[int], int]] = {}

    def read(self, settings: Settings, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row of `Capture.lookups`."""
        key = row["key"] or b""
        fresh = identities(row["values"] or b"", key)
        hit = row["hit_tokens"] // settings.hash_block
        chain = self._below(settings, row, key, hit)
        chain.extend(fresh)
        self._remember(chain, hit)
        common = identities(row["common"] or b"", key)
        grid = common_grid(row["hit_tokens"], row["prompt_tokens"])
        marks = list(zip(grid, common, strict=False))
        whole = identities(row["prompt_digest"] or b"", key)
        end = whole[0] if whole else UNKNOWN
        return Prompt(chain, marks, row["prompt_tokens"], end, key, row["lora"] or b"", row["salt"] or b"")

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

    def _below(self, settings: Settings, row: Mapping[str, Any], key: bytes, hit: int) -> "array[int]":
        if not hit:
            return array("Q")
        at_hit = identities(row["hit_fingerprint"] or b"", key)
        if at_hit and (known := self._where.get(at_hit[0])) and known[1] == hit - 1:
            return known[0][:hit]
        chain = array("Q", [UNKNOWN]) * hit
        for rung, identity in enumerate(identities(row["ladder"] or b"", key)):
            if 2**rung < hit:
                chain[2**rung - 1] = identity
        if at_hit:
            chain[hit - 1] = at_hit[0]
        return chain

    def _remember(self, chain: "array[int]", begin: int) -> None:
        for index in range(max(begin - 1, 0), len(chain)):
            if chain[index] != UNKNOWN:
                self._where.setdefault(chain[index], (chain, index))


def marks_of(prompt: Prompt, settings: Settings) -> Iterator[tuple[int, int]]:
    """Yield (end of the tokens it covers, identity) of everything that is named of `prompt`."""
    for index, identity in enumerate(prompt.chain):
        yield (index + 1) * settings.hash_block + settings.lookahead, identity
    yield from prompt.marks
    if prompt.whole != UNKNOWN:
        yield prompt.tokens, prompt.whole


def plain_marks(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return (position, identity) of the tokens alone, where multimodal items make the other fingerprints differ."""
    values = identities(row["plain"] or b"", b"")
    return list(zip(common_grid(row["hit_tokens"], row["prompt_tokens"]), values, strict=False))


def common_prefix(one: "array[int]", other: "array[int]") -> int:
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
    ends = (end for end, _ in marks_of(prompt, settings) if end <= prompt.tokens)
    whole = prompt.tokens if prompt.whole != UNKNOWN else None
    return max((end for end in ends if end != whole), default=0)
