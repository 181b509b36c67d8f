"""One prompt against every cache that could hold it: where it had been registered, and who holds it."""

from collections.abc import Iterator, Sequence

from analyzers.prompts import Chain
from analyzers.residency import Residency
from analyzers.views import View, last_of


class Caches:
    """The caches of replicas whose fingerprints compare.

    Attributes:
        members: all, in the order of lives.
        living: those that can hold something.
        ever: every prefix that a dense group of one of them had, or that was computed where there is none.

    """

    def __init__(self) -> None:
        self.members: list[Residency] = []
        self.living: list[Residency] = []
        self.ever: set[int] = set()

    def add(self, cache: Residency) -> None:
        """Take the cache of one more life; lives come in their order."""
        cache.everywhere = self.ever
        self.members.append(cache)
        self.living.append(cache)

    def end(self, cache: Residency) -> None:
        """Note that a life is over: it holds nothing, and will not."""
        if cache.settings.dense_groups and cache in self.living:
            self.living.remove(cache)


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
    def living(self) -> list[View]:
        """The views of the caches that can hold something."""
        if self._views is None:
            self._views = [*map(self._view, self._caches.living), *self._others]
        return self._views

    def all(self) -> Iterator[tuple[Residency, Chain]]:
        """Yield all caches, of lives that are over too, in the order of lives, each with the prompt as it names it."""
        yield from ((cache, self._here.chain) for cache in self._caches.members)
        yield from ((view.residency, view.chain) for view in self._others)

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
        yield from map(self._view, self._caches.members)

    def held(self, limit: int) -> int:
        """Return how much of the prompt one of the caches holds, at most `limit` tokens."""
        best = 0
        for view in self.living:
            best = max(best, view.prefix(limit))
            if best >= limit:
                break
        return best

    def holders(self, limit: int, most: int) -> list[str]:
        """Return the replicas that hold `most` of the first `limit` tokens, by name."""
        return sorted({view.residency.replica for view in self.living if view.prefix(limit) == min(limit, most)})
