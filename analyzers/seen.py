"""What earlier requests had of each prompt: the longest prefix, and whose. Found for all of a capture at once."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analyzers.others import Identities, Ints, latest_among, latest_others
from analyzers.prompts import UNKNOWN, Prompt, identities, kind_of, mix_of
from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_count, common_grid, common_mark

Name = tuple[int, str]
"""A request: the life that it was sent to, and its id there."""


class Before(NamedTuple):
    """What earlier requests had of a prompt.

    Attributes:
        same_key: tokens of the longest prefix that one had under the same key.
        any_key: tokens of the longest that one had under whatever key.
        relative: index of the lookup of whoever had the first; None: nobody had any, or without a lookup.
        other_key: index of a lookup whose prompt shares the longest prefix under whatever key.
        elsewhere: per kind of replicas whose fingerprints do not compare: who had most of it there, and the tokens.

    """

    same_key: int
    any_key: int
    relative: int | None
    other_key: int | None
    elsewhere: Sequence[tuple[Name, int]]


class _Lookup(NamedTuple):
    """A lookup among the acts: its prompt, and the hit (tokens) beyond which it names it."""

    act: int
    prompt: Prompt
    settings: Settings
    hit: int


_NONE = -1
"""Instead of the index of a lookup."""


class Acts:
    """Who named what, in time: lookups their prompts, stores what an answer added."""

    def __init__(self, *, keyed: bool) -> None:
        """Begin with none; `keyed`: some prompts have keys, and are to be compared whatever those are."""
        self._keyed = keyed
        self._lookups: list[_Lookup] = []
        self._latest: dict[Name, int] = {}
        self._number: dict[Name, int] = {}
        # By act: whose it was, that one's lookup, and where of what was named its chain, what is beside it, all end.
        self._owners, self._lookup_of = array("q"), array("q")
        self._named = array("Q")
        self._chain_ends, self._common_ends, self._ends = array("q"), array("q"), array("q", [0])
        # Where there are keys, also: the tokens alone, and what the key, its adapter and its salt do to identities.
        self._plain, self._plain_ends = array("Q"), array("q", [0])
        self._mixes = (array("Q"), array("Q"), array("Q"))

    def look_up(self, name: Name, prompt: Prompt, settings: Settings, hit: int, common: bytes, plain: bytes) -> int:
        """Note a lookup of the request `name`, and its prompt; return how many marks of the common grid it names.

        Args:
            name: the request.
            prompt: its prompt.
            settings: of its life.
            hit: what it hit, tokens.
            common: fingerprints on the common grid beyond the hit.
            plain: those of the tokens alone, where the prompt has a key.

        """
        marks = common_count(hit, prompt.tokens)
        self._latest[name] = len(self._lookups)
        self._lookups.append(_Lookup(len(self._owners), prompt, settings, hit))
        named = self._named
        named.fromlist(prompt.chain)
        self._chain_ends.append(len(named))
        beside = common[: min(marks, len(common) // FINGERPRINT_BYTES) * FINGERPRINT_BYTES]
        if prompt.key:
            named.fromlist(identities(beside, prompt.key))
        else:
            named.frombytes(beside)
        self._common_ends.append(len(named))
        if prompt.whole != UNKNOWN:
            named.append(prompt.whole)
        if self._keyed:
            self._plain.fromlist(identities(plain, b"")[:marks])
        self._close(name, prompt)
        return len(beside) // FINGERPRINT_BYTES

    def store(self, name: Name, prompt: Prompt, begin: int) -> None:
        """Note that a store of the request `name` added what its prompt's chain has from entry `begin` on."""
        self._latest.setdefault(name, _NONE)
        self._named.fromlist(prompt.chain[begin:])
        self._chain_ends.append(len(self._named))
        self._common_ends.append(len(self._named))
        self._close(name, prompt)

    def _close(self, name: Name, prompt: Prompt) -> None:
        self._ends.append(len(self._named))
        self._owners.append(self._number.setdefault(name, len(self._number)))
        self._lookup_of.append(self._latest[name])
        if self._keyed:
            self._plain_ends.append(len(self._plain))
            for mixes, mix in zip(self._mixes, (prompt.mix, mix_of(prompt.lora), mix_of(prompt.salt)), strict=True):
                mixes.append(mix)

    def before(self) -> list[Before]:
        """Return, lookup by lookup, what earlier requests had of its prompt."""
        if not self._lookups:
            return []
        return _Search(self).before()


class _Search:
    """The acts as arrays."""

    def __init__(self, acts: Acts) -> None:
        self._lookups = acts._lookups
        self._names = list(acts._number)
        self._lookup_of = acts._lookup_of
        self._owners = _ints(acts._owners)
        self._named, self._ends = _identities(acts._named), _ints(acts._ends)
        self._acts = _acts_of(self._ends)
        self._at = np.fromiter((one.act for one in self._lookups), np.int64, len(self._lookups))
        self._chain_ends, self._common_ends = _ints(acts._chain_ends)[self._at], _ints(acts._common_ends)[self._at]
        self._keyed = acts._keyed
        self._plain, self._plain_ends = _identities(acts._plain), _ints(acts._plain_ends)
        self._mixes = [_identities(each) for each in acts._mixes]

    def before(self) -> list[Before]:
        same = self._longest(latest_others(self._named, self._acts, self._owners))
        other = self._whatever_key([tokens for tokens, _ in same]) if self._keyed else [(0, None)] * len(same)
        elsewhere = self._elsewhere()
        return [
            Before(min(mine, one.prompt.tokens), min(max(mine, any_key), one.prompt.tokens), relative, other_key, there)
            for one, (mine, relative), (any_key, other_key), there in zip(
                self._lookups, same, other, elsewhere, strict=True
            )
        ]

    def _longest(self, others: Ints) -> list[tuple[int, int | None]]:
        """Return how many tokens of each prompt another had, and its lookup; `others` says who had each identity."""
        found = np.flatnonzero(others >= 0)
        begins = self._ends[self._at]
        chains = _last(found, begins, self._chain_ends).tolist()
        commons = _last(found, self._chain_ends, self._common_ends).tolist()
        wholes = _last(found, self._common_ends, self._ends[self._at + 1]).tolist()
        told: list[tuple[int, int | None]] = []
        for index, (one, chain, common, whole) in enumerate(zip(self._lookups, chains, commons, wholes, strict=True)):
            end, place = 0, -1
            if chain >= 0:
                blocks = chain - int(begins[index]) + 1
                end, place = blocks * one.settings.hash_block + one.settings.lookahead, chain
            if common >= 0 and (mark := self._mark(index, common - int(self._chain_ends[index]))) > end:
                end, place = mark, common
            if whole >= 0 and one.prompt.tokens > end:
                end, place = one.prompt.tokens, whole
            told.append((end, self._lookup(int(others[place])) if place >= 0 else None))
        return told

    def _mark(self, index: int, place: int) -> int:
        """Return which tokens of the prompt of a lookup the identity at `place` beside its chain covers."""
        one = self._lookups[index]
        return common_mark(one.hit, place)

    def _lookup(self, act: int) -> int | None:
        index = self._lookup_of[act]
        return index if index >= 0 else None

    def _whatever_key(self, same: Sequence[int]) -> list[tuple[int, int | None]]:
        """Return how many tokens of each prompt another had under whatever key, and the nearest of their lookups."""
        mix, lora, salt = self._mixes
        tokens, plain = self._named ^ mix[self._acts], self._plain
        plain_acts = _acts_of(self._plain_ends)
        alone, items = latest_among(self._owners, [(tokens, self._acts), (plain, plain_acts)])
        told = self._longest(alone)
        lasts = _last(np.flatnonzero(items >= 0), self._plain_ends[self._at], self._plain_ends[self._at + 1]).tolist()
        for index, last in enumerate(lasts):
            if last >= 0:
                mark = self._mark(index, last - int(self._plain_ends[self._at[index]]))
                if mark > told[index][0]:
                    told[index] = mark, self._lookup(int(items[last]))
        longer = [index for index, (end, _) in enumerate(told) if end > same[index]]
        if not longer:
            return told
        # Of those, somebody is nearest who differs in the items alone, then in the adapter or the salt alone.
        asks = [self._beyond(index, told[index][0], tokens) for index in longer]
        ends = np.cumsum([0, *map(len, asks)])
        asked, by = np.concatenate(asks), np.repeat(self._at[longer], np.diff(ends))
        tables = (
            (mix, [(self._named, self._acts)]),
            (mix, [(plain ^ mix[plain_acts], plain_acts)]),
            (lora, [(tokens ^ lora[self._acts], self._acts), (plain ^ lora[plain_acts], plain_acts)]),
            (salt, [(tokens ^ salt[self._acts], self._acts), (plain ^ salt[plain_acts], plain_acts)]),
        )
        nearest: dict[int, int | None] = {}
        for key, had in tables:
            others = latest_among(self._owners, had, (asked ^ key[by], by))[-1]
            firsts = _first(np.flatnonzero(others >= 0), ends[:-1], ends[1:]).tolist()
            for index, first in zip(longer, firsts, strict=True):
                if first >= 0 and index not in nearest:
                    nearest[index] = self._lookup(int(others[first]))
        for index, lookup in nearest.items():
            told[index] = told[index][0], lookup
        return told

    def _beyond(self, index: int, tokens: int, named: Identities) -> Identities:
        """Return what the tokens alone of a prompt are named by from its first `tokens` on."""
        one, act = self._lookups[index], self._at[index]
        grid = common_grid(one.hit, one.prompt.tokens)
        plain = self._plain[self._plain_ends[act] : self._plain_ends[act + 1]]
        if len(plain):
            return plain[np.array(grid[: len(plain)]) >= tokens]
        unit, look = one.settings.hash_block, one.settings.lookahead
        begin, chain_end, common_end = self._ends[act], self._chain_ends[index], self._common_ends[index]
        marks = [(place + 1) * unit + look for place in range(chain_end - begin)]
        marks += grid[: common_end - chain_end]
        marks += [one.prompt.tokens] * int(self._ends[act + 1] - common_end)
        return named[begin : self._ends[act + 1]][np.array(marks, np.int64) >= tokens]

    def _elsewhere(self) -> Sequence[Sequence[tuple[Name, int]]]:
        """Return, per kind of replicas whose fingerprints do not compare, who had most of each prompt, and how much."""
        known = {id(one.settings): one.settings for one in self._lookups}
        of_settings = {each: kind_of(settings) for each, settings in known.items()}
        if len(set(of_settings.values())) == 1:
            return [()] * len(self._lookups)
        told: list[list[tuple[Name, int]]] = [[] for _ in self._lookups]
        kinds = [of_settings[id(one.settings)] for one in self._lookups]
        for kind in dict.fromkeys(kinds):
            others = [other for other in dict.fromkeys(kinds) if other != kind and other[0] == kind[0]]
            askers = [index for index, other in enumerate(kinds) if other in others]
            if not askers:
                continue
            had = self._beside([index for index, other in enumerate(kinds) if other == kind])
            places = self._beside(askers)
            found = latest_among(
                self._owners, [(self._named[had], self._acts[had])], (self._named[places], self._acts[places])
            )[-1]
            ends = np.cumsum([0, *(self._common_ends - self._chain_ends)[askers]])
            lasts = _last(np.flatnonzero(found >= 0), ends[:-1], ends[1:]).tolist()
            for index, begin, last in zip(askers, ends.tolist(), lasts, strict=False):
                if last >= 0:
                    owner = self._names[self._owners[found[last]]]
                    told[index].append((owner, self._mark(index, last - begin)))
        return told

    def _beside(self, indexes: Sequence[int]) -> Ints:
        """Return where the identities are that lookups name beside their chains."""
        ranges = [np.arange(self._chain_ends[index], self._common_ends[index]) for index in indexes]
        return np.concatenate(ranges)


def _identities(numbers: "array[int]") -> Identities:
    return np.frombuffer(numbers, np.uint64) if numbers else np.empty(0, np.uint64)


def _ints(numbers: "array[int]") -> Ints:
    return np.frombuffer(numbers, np.int64) if numbers else np.empty(0, np.int64)


def _acts_of(ends: Ints) -> Ints:
    """Return the act of each of the things of which those of act `i` end before `ends[i + 1]`."""
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))


def _last(found: Ints, begins: Ints, ends: Ints) -> Ints:
    """Return the last of the ascending `found` in each range; -1: there is none."""
    if not len(found):
        return np.full(len(begins), -1, np.int64)
    place = np.searchsorted(found, ends) - 1
    last = found[np.maximum(place, 0)]
    return np.where((place >= 0) & (last >= begins), last, -1)


def _first(found: Ints, begins: Ints, ends: Ints) -> Ints:
    """Return the first of the ascending `found` in each range; -1: there is none."""
    if not len(found):
        return np.full(len(begins), -1, np.int64)
    place = np.minimum(np.searchsorted(found, begins), len(found) - 1)
    first = found[place]
    return np.where((first >= begins) & (first < ends), first, -1)
