"""One prompt against every cache that could hold it: where it had been registered, and who holds it."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from analyzers.prompts import Chain
from analyzers.residency import REASON, TIME, Loss, NumberedLoss, Residency
from analyzers.settings import Group
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


class Caches:
    """The caches of replicas whose fingerprints compare.

    Attributes:
        members: those of lives that have begun, in that order.
        living: of these, those that can hold something.
        past: of these, those that cannot, and when (ns) they ended, in that order.
        ever: every prefix that a dense group of one of them had, or that was computed where there is none.
        evicted: what dense groups of past lives lost before they ended, by block size.

    """

    def __init__(self) -> None:
        self.members: list[Residency] = []
        self.living: list[Residency] = []
        self.past: list[tuple[int, Residency]] = []
        self.ever: set[int] = set()
        self.evicted: dict[int, set[int]] = {}

    def begin(self, cache: Residency) -> None:
        """Take the cache of a life that begins."""
        cache.everywhere = self.ever
        self.members.append(cache)
        self.living.append(cache)

    def end(self, cache: Residency, time: int) -> None:
        """Note that a life is over, at `time` (ns): it holds nothing, and will not."""
        if cache.settings.dense_groups and cache in self.living:
            self.living.remove(cache)
            self.past.append((time, cache))
            for group in cache.settings.dense_groups:
                lost = cache.groups[group.index].lost
                gone = (identity for identity, loss in lost.items() if loss[REASON] != "reset")
                self.evicted.setdefault(group.block_size, set()).update(gone)
        cache.finish(time)


def lost_by(residency: Residency, chain: Chain, position: int) -> Lost | None:
    """Return what one replica lost of the first block beyond `position` (tokens) of `chain`."""
    losses = _losses(residency, chain, position)
    if not losses:
        return None
    last = max(losses, key=itemgetter(TIME))
    gone = [
        group.index for group in residency.settings.dense_groups
        if (index := _beyond(residency, group, position)) < len(chain)
        and chain[index] in residency.groups[group.index].lost
    ]  # fmt: skip
    return Lost(Loss(*last[:-1]), residency, gone, all(loss[REASON] == "reset" for loss in losses))


def _losses(residency: Residency, chain: Chain, position: int) -> list[NumberedLoss]:
    """Return the losses, by dense groups of one replica, of the first block beyond `position` (tokens) of `chain`."""
    found = []
    for group in residency.settings.dense_groups:
        index = _beyond(residency, group, position)
        if index < len(chain) and (loss := residency.groups[group.index].lost.get(chain[index])):
            found.append(loss)
    return found


def _beyond(residency: Residency, group: Group, position: int) -> int:
    """Return the entry of a chain at the end of the first block of `group` beyond `position` (tokens)."""
    return (position // group.block_size + 1) * group.block_size // residency.settings.hash_block - 1


class FleetViews:
    """A prompt against all of `caches`, and against `others` that name it otherwise.

    `first` is a cache that is likely to have had much of it.
    """

    def __init__(self, caches: Caches, here: View, others: Sequence[View] = (), first: Residency | None = None) -> None:
        self._caches = caches
        self._here = here
        self._others = others
        self._first = first
        self._views: list[View] | None = None

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
        latest, by, reset = -1, None, True
        chain = self._here.chain
        named = [(cache, chain) for cache in self._caches.living]
        if self._others:
            named += [(view.residency, view.chain) for view in self._others]
        for cache, as_named in named:
            for lost in _losses(cache, as_named, position):
                reset = reset and lost[REASON] == "reset"
                if lost[TIME] > latest:
                    latest, by = lost[TIME], (cache, as_named)
        for end, cache in reversed(self._caches.past):
            if latest >= end:
                break
            for lost in _losses(cache, chain, position):
                if lost[TIME] > latest:
                    latest, by = lost[TIME], (cache, chain)
        found = lost_by(*by, position) if by else None
        return found._replace(reset=reset and not self._evicted_before(position)) if found else None

    def _evicted_before(self, position: int) -> bool:
        """Whether a life that is over had lost the first dense block beyond `position` before it ended."""
        beyond = ((gone, (position // block + 1) * block) for block, gone in self._caches.evicted.items())
        return any(self._here.is_in(gone, end) for gone, end in beyond)

    def registered(self, limit: int) -> int:
        """Return how much of the prompt one of the caches has ever had, at most `limit` tokens."""
        best = 0
        here = self._here
        top = min(limit, here.shared)
        # No cache has had more than the last prefix that any has had.
        bound = min(top, last_of(here.chain, self._caches.ever, len(here.chain), 1) * here.unit)
        for view in self._likeliest_first():
            best = max(best, view.prefix(limit, ever=True))
            if best >= limit or (best >= bound and not self._others):
                break
        return best

    def _likeliest_first(self) -> Iterator[View]:
        yield self._here
        if self._first:
            yield self._view(self._first)
        yield from self._others
        chain = self._here.chain
        yield from (self._view(cache) for cache in self._caches.members if cache.may_have_begun(chain))

    def held(self, limit: int) -> int:
        """Return how much of the prompt one of the caches holds, at most `limit` tokens."""
        best = 0
        for view in self.holding:
            best = max(best, view.prefix(limit))
            if best >= limit:
                break
        return best

    def holders(self, limit: int, most: int) -> list[str]:
        """Return the replicas that hold `most` of the first `limit` tokens, by name."""
        return sorted({view.residency.replica for view in self.holding if view.prefix(limit) == min(limit, most)})
