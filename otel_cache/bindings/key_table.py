"""What each key in a replica's cache stands for, in arrays: as large as the block pool, whatever the load."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_cache.fingerprints import SUMS_BYTES, Sums, read_sums
from otel_cache.records import FINGERPRINT_BYTES


class Lost(NamedTuple):
    """Keys of one group that left the cache; the fields run in parallel, as in `otel_cache.records.Evict`."""

    group: int
    positions: list[int]
    fingerprints: bytes
    extras: list[bytes]
    ages: list[int]
    blocks: list[int]


class KeyTable:
    """Rows by key: group, position in tokens, fingerprint, its sums, digest of the extra keys, and when it was stored."""

    def __init__(self, capacity: int) -> None:
        """Make room for about `capacity` keys; more are taken if they come."""
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._extras: dict[int, bytes] = {}
        self._positions: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._groups: NDArray[np.int16] = np.zeros(capacity, np.int16)
        self._times: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._prints: NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self._sums: NDArray[np.uint64] = np.zeros((capacity, 2), np.uint64)

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, keys: Sequence[Any], group: int, positions: range | list[int], prints: bytes, sums: bytes,
        extra: bytes, time: int,
    ) -> None:  # fmt: skip
        """Take `keys`, the fingerprints and sums of which stand one after the other; stored again is stored anew."""
        if not self._rows.keys().isdisjoint(keys):
            known = {row for key in keys if (row := self._rows.get(key)) is not None}
            self._free += known
        rows = self._take(len(keys))
        self._rows.update(zip(keys, rows, strict=True))
        at: Any = rows if len(rows) > 1 else rows[0]
        self._positions[at] = positions if len(rows) > 1 else positions[0]
        self._groups[at] = group
        self._times[at] = time
        self._prints[at] = np.frombuffer(prints, np.uint64)
        self._sums[at] = np.frombuffer(sums, np.uint64).reshape(-1, 2)
        if extra:
            self._extras.update(dict.fromkeys(rows, extra))
        elif self._extras:
            for row in rows:
                self._extras.pop(row, None)

    def find(self, key: Any) -> tuple[bytes, Sums] | None:
        """Return the fingerprint and the sums of a key that is in the cache."""
        row = self._rows.get(key)
        if row is None:
            return None
        return self._prints[row].tobytes(), read_sums(self._sums[row].tobytes())

    def remove(self, keys: Sequence[Any], blocks: Sequence[int], time: int) -> tuple[list[Lost], list[int]]:
        """Take out `keys` that `blocks` carried, by group; return besides which indices of them were not known."""
        rows = [self._rows.pop(key, -1) for key in keys]
        unknown: list[int] = []
        if -1 in rows:
            unknown = [index for index, row in enumerate(rows) if row < 0]
            blocks = [block for block, row in zip(blocks, rows, strict=True) if row >= 0]
            rows = [row for row in rows if row >= 0]
        if not rows:
            return [], unknown
        self._free += rows
        at = np.array(rows)
        groups = self._groups[at]
        if len(rows) == 1 or (groups == groups[0]).all():
            return [self._lost(int(groups[0]), at, list(blocks), time)], unknown
        numbers = np.array(blocks)
        return [
            self._lost(int(group), at[groups == group], numbers[groups == group].tolist(), time)
            for group in np.unique(groups)
        ], unknown

    def clear(self) -> None:
        """Forget everything: the cache was reset."""
        self._rows.clear()
        self._free.clear()
        self._extras.clear()
        self._used = 0

    def _lost(self, group: int, at: "NDArray[np.int64]", blocks: list[int], time: int) -> Lost:
        extras: list[bytes] = []
        if self._extras:
            extras = [self._extras.pop(row, b"") for row in at.tolist()]
            extras = extras if any(extras) else []
        ages = np.maximum(time - self._times[at], 0).tolist()
        return Lost(group, self._positions[at].tolist(), self._prints[at].tobytes(), extras, ages, blocks)

    def _take(self, count: int) -> list[int]:
        rows = self._free[-count:]
        del self._free[-count:]
        fresh = count - len(rows)
        if fresh:
            if self._used + fresh > len(self._positions):
                self._grow(self._used + fresh)
            rows += range(self._used, self._used + fresh)
            self._used += fresh
        return rows

    def _grow(self, needed: int) -> None:
        size = max(needed, 2 * len(self._positions))
        for name in ("_positions", "_groups", "_times", "_prints", "_sums"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)


NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)
NO_SUMS = bytes(SUMS_BYTES)
