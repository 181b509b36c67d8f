"""A bounded table that forgets what was not used for longest, roughly, and costs next to nothing."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Entries by key: the latest at most `limit`, and at least half as many.

    They are kept in two halves. When the younger is full the older one is dropped whole, so an entry costs one
    insertion and no bookkeeping; what is asked for moves into the younger half.
    """

    def __init__(self, limit: int) -> None:
        """Begin without entries."""
        self._half = max(limit // 2, 1)
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def __len__(self) -> int:
        """Return how many entries are held, twice where a key is in both halves."""
        return len(self._young) + len(self._old)

    def get(self, key: bytes) -> T | None:
        """Return the entry of `key`, None where there is none."""
        found = self._young.get(key)
        if found is None and self._old and (found := self._old.pop(key, None)) is not None:
            self.put(key, found)
        return found

    def put(self, key: bytes, value: T) -> None:
        """Set the entry of `key`."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def put_all(self, keys: Sequence[bytes], value: T) -> None:
        """Set the entries of `keys` to the same value."""
        young = self._young
        if len(young) + len(keys) > self._half:
            for key in keys:
                self.put(key, value)
            return
        for key in keys:
            young[key] = value

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove the entries of `keys`, as far as there are any."""
        of_young, of_old = self._young.pop, self._old.pop
        for key in keys:
            of_young(key, None)
            of_old(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._young = {}
        self._old = {}
