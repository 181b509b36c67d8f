"""One prompt against every cache that could hold it: where it had been registered, and who holds it."""

from collections.abc import Sequence
from typing import NamedTuple

from analyzers.prompts import Chain
from analyzers.residency import REASON, TIME, GroupResidency, Loss, NumberedLoss, Residency
from analyzers.views import View, last_of


class Lost(NamedTuple):
    """What became of the first dense block beyond a position.

    Attributes:
        loss: the latest.
        residency: the cache of that one; `groups` of it lost the block.
        reset: no cache lost it but by being cleared.

    """

    loss: Loss
    residency: Residency
    groups: Sequence[int]
    reset: bool


Owned = tuple[GroupResidency, Residency]
"""A dense group, and its cache."""


class Caches:
    """The caches of replicas whose fingerprints compare.

    Attributes:
        members: those of lives that have begun, in that order.
        living: of these, those that can hold something.
        whole: each of the living has one dense group, and hits are made of whole blocks of it.
        given_up: what every hit gives up for speculation, on whichever of the living, of what that group holds; tokens.
        dense: the dense groups of the living, by block size, each with its cache.
        past: of what dense groups lost in lives that are over, the one that lost it last, by block size.
        ever: every prefix that a dense group of one of them had, or that was computed where there is none.
        evicted: what dense groups of past lives lost before they ended, by block size.

    """

    def __init__(self) -> None:
        self.members: list[Residency] = []
        self.living: list[Residency] = []
        self.whole = True
        self.given_up = 0
        self.dense: dict[int, list[Owned]] = {}
        self.past: dict[int, dict[int, Owned]] = {}
        self.ever: set[int] = set()
        self.evicted: dict[int, set[int]] = {}

    def begin(self, cache: Residency) -> None:
        """Take the cache of a life that begins."""
        cache.everywhere = self.ever
        self.members.append(cache)
        self.living.append(cache)
        for group in cache.settings.dense_groups:
            self.dense.setdefault(group.block_size, []).append((cache.groups[group.index], cache))
        self._sum_up()

    def end(self, cache: Residency, time: int) -> None:
        """Note that a life is over, at `time` (ns): it holds nothing, and will not."""
        if cache.settings.dense_groups and cache in self.living:
            self.living.remove(cache)
            self._sum_up()
            owned = [(group.block_size, (cache.groups[group.index], cache)) for group in cache.settings.dense_groups]
            for block, own in owned:
                self.dense[block].remove(own)
                self._note_lost(block, own)
            for block, own in owned:
                # No loss is later than those of now.
                self.past[block].update(dict.fromkeys(own[0].held, own))
        cache.finish(time)

    def _sum_up(self) -> None:
        self.whole = all(cache.alone for cache in self.living)
        self.given_up = min((cache.given_up if cache.bounding else 0 for cache in self.living), default=0)

    def _note_lost(self, block: int, own: Owned) -> None:
        """Note what a group has lost before its life ends."""
        lost = own[0].lost
        gone = {identity for identity, loss in lost.items() if loss[REASON] != "reset"}
        self.evicted.setdefault(block, set()).update(gone)
        past = self.past.setdefault(block, {})
        for identity, loss in lost.items():
            if (before := past.get(identity)) is None or before[0].lost[identity][TIME] <= loss[TIME]:
                past[identity] = own


def lost_by(residency: Residency, chain: Chain, position: int, reset: bool | None = None) -> Lost | None:
    """Return what one replica lost of the first block beyond `position` (tokens) of `chain`.

    `reset`: what is known of the others too.
    """
    last: NumberedLoss | None = None
    cleared, gone = True, []
    for group in residency.settings.dense_groups:
        index = _beyond(position, group.block_size, residency.settings.hash_block)
        if index < len(chain) and (loss := residency.groups[group.index].lost.get(chain[index])):
            gone.append(group.index)
            cleared = cleared and loss[REASON] == "reset"
            if last is None or loss[TIME] > last[TIME]:
                last = loss
    if last is None:
        return None
    return Lost(Loss(*last[:-1]), residency, gone, cleared if reset is None else reset)


def _beyond(position: int, block: int, unit: int) -> int:
    """Return the entry of a chain, one every `unit` tokens, at which the first block beyond `position` ends."""
    return (position // block + 1) * block // unit - 1


class FleetViews:
    """A prompt against all of `caches`, and against `others` that name it otherwise.

    `first` is a cache that is likely to have had much of it.
    """

    __slots__ = ("_ahead", "_caches", "_first", "_here", "_others", "_views")

    def __init__(self, caches: Caches, here: View, others: Sequence[View] = (), first: Residency | None = None) -> None:
        self._caches = caches
        self._here = here
        self._others = others
        self._first = first
        self._views: list[View] | None = None
        self._ahead: bool | None = None

    def _view(self, cache: Residency) -> View:
        return self._here if cache is self._here.residency else View(cache, self._here.chain, self._here.shared)

    @property
    def holding(self) -> list[View]:
        """The views of the caches that may hold something of the prompt from the start."""
        if self._views is None:
            chain = self._here.chain
            self._views = [self._view(cache) for cache in self._caches.living if cache.may_begin(chain)]
            self._views += self._others
        return self._views

    def lost(self, position: int) -> Lost | None:
        """Return what all replicas lost of the first dense block beyond `position` (tokens), in lives past or not."""
        latest, reset = -1, True
        by: tuple[Residency, Chain] | None = None
        chain, unit, caches = self._here.chain, self._here.unit, self._caches
        for block, groups in caches.dense.items():
            index = _beyond(position, block, unit)
            if index >= len(chain):
                continue
            identity = chain[index]
            for residency, cache in groups:
                if loss := residency.lost.get(identity):
                    reset = reset and loss[REASON] == "reset"
                    if loss[TIME] > latest:
                        latest, by = loss[TIME], (cache, chain)
        for view in self._others:
            if lost := lost_by(view.residency, view.chain, position):
                reset = reset and lost.reset
                if lost.loss.time > latest:
                    latest, by = lost.loss.time, (view.residency, view.chain)
        for block, past in caches.past.items():
            index = _beyond(position, block, unit)
            if index < len(chain) and (over := past.get(chain[index])):
                reset = reset and chain[index] not in caches.evicted[block]
                residency, cache = over
                if (last := residency.lost[chain[index]][TIME]) > latest:
                    latest, by = last, (cache, chain)
        return lost_by(*by, position, reset) if by else None

    def registered(self, limit: int) -> int:
        """Return how much of the prompt one of the caches has ever had, at most `limit` tokens."""
        here = self._here
        best = here.ever(limit)
        if best < limit and self._first and self._first is not here.residency:
            best = max(best, self._view(self._first).ever(limit))
        if best >= limit:
            return best
        # No cache has had more than the last prefix that any has had.
        last = last_of(here.chain, self._caches.ever, len(here.chain), 1) * here.unit
        bound = min(limit, here.shared, last)
        for view in self._others:
            best = max(best, view.ever(limit))
        for cache in self._caches.members:
            if best >= bound:
                break
            if cache.may_have_begun(here.chain):
                best = max(best, self._view(cache).ever(limit))
        return best

    def held(self, limit: int) -> int:
        """Return how much of the prompt one of the caches holds, at most `limit` tokens."""
        best = self._here.prefix(limit)
        if best >= limit or self._is_ahead():
            return best
        for view in self.holding:
            best = max(best, view.prefix(limit))
            if best >= limit:
                break
        return best

    def most(self, limit: int) -> int:
        """Return what no hit of at most `limit` tokens is longer than, on whichever replica."""
        if self._others or not (given_up := self._caches.given_up):
            return limit
        held = self.held(limit)
        return held - given_up if held < limit and held < self._here.shared else held

    def _is_ahead(self) -> bool:
        """Whether it is certain that no cache holds more of the prompt than the one here: none has the next block."""
        if (ahead := self._ahead) is None:
            ahead = self._ahead = self._caches.whole and not self._others and not self._has_next()
        return ahead

    def _has_next(self) -> bool:
        here = self._here
        chain, unit, position = here.chain, here.unit, here.prefix(here.shared)
        for block, groups in self._caches.dense.items():
            index = _beyond(position, block, unit)
            if index < len(chain):
                identity = chain[index]
                for residency, _ in groups:
                    if identity in residency.held:
                        return True
        return False

    def holders(self, limit: int, most: int) -> list[str]:
        """Return the replicas that hold `most` of the first `limit` tokens, by name."""
        return sorted({view.residency.replica for view in self.holding if view.prefix(limit) == min(limit, most)})
