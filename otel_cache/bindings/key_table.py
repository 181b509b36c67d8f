"""What each key in a replica's cache stands for: as large as the block pool, whatever the load.

A key leads to a row of some arrays, which are read and written many rows at a time where many keys come or go.
"""

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_cache.fingerprints import SUMS_BYTES, Sums
from otel_cache.records import FINGERPRINT_BYTES

NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)
NO_SUMS = bytes(SUMS_BYTES)


class Lost(NamedTuple):
    """Keys of one group that left the cache; the fields run in parallel, as in `otel_cache.records.Evict`."""

    group: int
    positions: list[int]
    fingerprints: bytes
    extras: list[bytes]
    ages: list[int]
    blocks: list[int]


class KeyTable:
    """Group, position in tokens, fingerprint, its sums, digest of the extra keys, and time of the store, by key."""

    def __init__(self, capacity: int) -> None:
        """Make room for about `capacity` keys; more are taken if they come."""
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._extras: dict[int, bytes] = {}
        self._lost_track = False
        self._positions: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._groups: NDArray[np.int16] = np.zeros(capacity, np.int16)
        self._times: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._prints: NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self._sums: NDArray[np.uint64] = np.zeros((capacity, 2), np.uint64)
        self._view()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def add(
        self, keys: Sequence[Any], group: int, positions: Sequence[int], prints: bytes, sums: bytes, extra: bytes,
        time: int,
    ) -> None:  # fmt: skip
        """Take `keys`, the fingerprints and sums of which stand one after the other; stored again is stored anew."""
        known = self._rows
        count = len(known) + len(keys)
        rows = self._take(len(keys))
        if len(rows) == 1:  # a block that was decoded: its row is written quicker by its number
            (row,) = rows
            known[keys[0]] = row
            self._positions[row], self._groups[row], self._times[row] = positions[0], group, time
            size, width = FINGERPRINT_BYTES, SUMS_BYTES
            self._print_bytes[row * size : (row + 1) * size] = prints
            self._sum_bytes[row * width : (row + 1) * width] = sums
        else:
            known.update(zip(keys, rows, strict=True))
            at = np.frombuffer(array("q", rows), np.int64)
            self._positions[at], self._groups[at], self._times[at] = _array(positions), group, time
            self._prints[at] = np.frombuffer(prints, np.uint64)
            self._sums[at] = np.frombuffer(sums, np.uint64).reshape(-1, 2)
        if extra:
            self._extras.update(dict.fromkeys(rows, extra))
        if len(known) < count:
            self._lost_track = True  # of the rows of keys that were there already

    def find(self, key: Any) -> tuple[bytes, Sums] | None:
        """Return the fingerprint and the sums of a key that is in the cache."""
        row = self._rows.get(key)
        if row is None:
            return None
        return self._value(row), (self._sums.item(row, 0), self._sums.item(row, 1))

    def fingerprint(self, key: Any) -> bytes:
        """Return the fingerprint of a key, empty where the cache has none such."""
        row = self._rows.get(key)
        return b"" if row is None else self._value(row)

    def remove(self, keys: Sequence[Any], blocks: Sequence[int], time: int) -> tuple[list[Lost], list[int]]:
        """Take out `keys` that `blocks` carried, by group; return besides which indices of them were not known."""
        found = list(map(self._rows.pop, keys, repeat(None)))
        unknown: list[int] = []
        if None in found:
            unknown = [index for index, row in enumerate(found) if row is None]
            blocks = [block for block, row in zip(blocks, found, strict=True) if row is not None]
        rows = [row for row in found if row is not None] if unknown else found
        return self._lost(rows, blocks, time) if rows else [], unknown

    def clear(self) -> None:
        """Forget everything: the cache was reset."""
        self._rows.clear()
        self._free.clear()
        self._extras.clear()
        self._used = 0
        self._lost_track = False

    def _lost(self, rows: list[Any], blocks: Sequence[int], time: int) -> list[Lost]:
        """Take out rows that no key leads to any more."""
        extras = [self._extras.pop(row, b"") for row in rows] if self._extras else []
        if not any(extras):
            extras = []
        self._free += rows
        if len(rows) == 1:
            (row,) = rows
            age = max(time - self._times.item(row), 0)
            position, value = self._positions.item(row), self._value(row)
            return [Lost(self._groups.item(row), [position], value, extras, [age], list(blocks))]
        at = np.frombuffer(array("q", rows), np.int64)
        groups = self._groups[at]
        ages = np.maximum(time - self._times[at], 0)
        positions, prints = self._positions[at], self._prints[at]
        if (groups == groups[0]).all():
            return [Lost(int(groups[0]), positions.tolist(), prints.tobytes(), extras, ages.tolist(), list(blocks))]
        lost = []
        for group in np.unique(groups).tolist():
            chosen = np.flatnonzero(groups == group)
            lost.append(
                Lost(
                    group,
                    positions[chosen].tolist(),
                    prints[chosen].tobytes(),
                    [extras[index] for index in chosen] if extras else [],
                    ages[chosen].tolist(),
                    [blocks[index] for index in chosen],
                )
            )
        return lost

    def _value(self, row: int) -> bytes:
        return bytes(self._print_bytes[row * FINGERPRINT_BYTES : (row + 1) * FINGERPRINT_BYTES])

    def _take(self, count: int) -> list[int]:
        while self._used + count - len(self._free) > len(self._positions):
            self._make_room(self._used + count - len(self._free))
        if count == 1 and self._free:
            return [self._free.pop()]
        rows = self._free[-count:]
        del self._free[-count:]
        fresh = count - len(rows)
        rows += range(self._used, self._used + fresh)
        self._used += fresh
        return rows

    def _make_room(self, needed: int) -> None:
        if self._lost_track:
            self._lost_track = False
            used = set(self._rows.values())
            self._free = [row for row in range(self._used) if row not in used]
            for row in self._free if self._extras else ():
                self._extras.pop(row, None)
        else:
            self._grow(needed)

    def _grow(self, needed: int) -> None:
        size = max(needed, 2 * len(self._positions))
        for name in ("_positions", "_groups", "_times", "_prints", "_sums"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        self._view()

    def _view(self) -> None:
        self._print_bytes = self._prints.data.cast("B")
        self._sum_bytes = self._sums.data.cast("B")


def _array(positions: Sequence[int]) -> NDArray[np.int64]:
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step)
    return np.array(positions, np.int64)
