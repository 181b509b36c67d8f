"""What each key in a replica's cache stands for: as large as the block pool, whatever the load.

A long run of keys is kept in arrays, a short one (a block that was decoded) as plain values: each is quicker so.
"""

import sys
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_cache.fingerprints import SUMS_BYTES, Sums, read_sums
from otel_cache.records import FINGERPRINT_BYTES

NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)
NO_SUMS = bytes(SUMS_BYTES)
_FEW = 8
_ROWS = {int}


class Lost(NamedTuple):
    """Keys of one group that left the cache; the fields run in parallel, as in `otel_cache.records.Evict`."""

    group: int
    positions: list[int]
    fingerprints: bytes
    extras: list[bytes]
    ages: list[int]
    blocks: list[int]


_Entry = tuple[int, int, bytes, bytes, bytes, int]
"""Group, position, fingerprint, sums, extra, time."""


class KeyTable:
    """Group, position in tokens, fingerprint, its sums, digest of the extra keys, and time of the store, by key."""

    def __init__(self, capacity: int) -> None:
        """Make room for about `capacity` keys; more are taken if they come."""
        self._entries: dict[Any, _Entry | int] = {}
        self._free: list[int] = []
        self._used = 0
        self._extras: dict[int, bytes] = {}
        self._lost_track = False
        self._positions: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._groups: NDArray[np.int16] = np.zeros(capacity, np.int16)
        self._times: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._prints: NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self._sums: NDArray[np.uint64] = np.zeros((capacity, 2), np.uint64)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Any) -> bool:
        return key in self._entries

    def add(
        self, keys: Sequence[Any], group: int, positions: Sequence[int], prints: bytes, sums: bytes, extra: bytes,
        time: int,
    ) -> None:  # fmt: skip
        """Take `keys`, the fingerprints and sums of which stand one after the other; stored again is stored anew."""
        entries = self._entries
        count = len(entries) + len(keys)
        if len(keys) <= _FEW:
            size, width = FINGERPRINT_BYTES, SUMS_BYTES
            for index, key in enumerate(keys):
                value = prints[index * size : (index + 1) * size]
                entries[key] = (group, positions[index], value, sums[index * width : (index + 1) * width], extra, time)
        else:
            rows = self._take(len(keys))
            entries.update(zip(keys, rows, strict=True))
            at = np.array(rows)
            self._positions[at] = _array(positions)
            self._groups[at] = group
            self._times[at] = time
            self._prints[at] = np.frombuffer(prints, np.uint64)
            self._sums[at] = np.frombuffer(sums, np.uint64).reshape(-1, 2)
            if extra:
                self._extras.update(dict.fromkeys(rows, extra))
        if len(entries) < count:
            self._lost_track = True  # of the rows of keys that were there already

    def find(self, key: Any) -> tuple[bytes, Sums] | None:
        """Return the fingerprint and the sums of a key that is in the cache."""
        known = self._entries.get(key)
        if known is None:
            return None
        if type(known) is int:
            return _bytes(self._prints.item(known)), (self._sums.item(known, 0), self._sums.item(known, 1))
        assert isinstance(known, tuple)
        return known[2], read_sums(known[3])

    def fingerprint(self, key: Any) -> bytes:
        """Return the fingerprint of a key, empty where the cache has none such."""
        known = self._entries.get(key)
        if known is None:
            return b""
        return _bytes(self._prints.item(known)) if type(known) is int else known[2]  # type: ignore[index]

    def remove(self, keys: Sequence[Any], blocks: Sequence[int], time: int) -> tuple[list[Lost], list[int]]:
        """Take out `keys` that `blocks` carried, by group; return besides which indices of them were not known."""
        found: list[Any] = list(map(self._entries.pop, keys, repeat(None)))
        kinds = set(map(type, found))
        if kinds == _ROWS and len(found) > _FEW:
            return self._lost_rows(found, blocks, time), []
        lost: list[Lost] = []
        if int in kinds:
            rows = [index for index, each in enumerate(found) if type(each) is int]
            if len(rows) > _FEW:
                lost = self._lost_rows([found[index] for index in rows], [blocks[index] for index in rows], time)
            else:
                for index in rows:
                    found[index] = self._entry(found[index])
        by_group: dict[int, list[int]] = {}
        for index, each in enumerate(found):
            if type(each) is tuple:
                by_group.setdefault(each[0], []).append(index)
        for group, indices in by_group.items():
            lost.append(_lost(group, [found[index] for index in indices], [blocks[index] for index in indices], time))
        return lost, [index for index, each in enumerate(found) if each is None]

    def _entry(self, row: int) -> _Entry:
        """Take out a row that no key leads to any more."""
        self._free.append(row)
        extra = self._extras.pop(row, b"") if self._extras else b""
        return (
            self._groups.item(row), self._positions.item(row), _bytes(self._prints.item(row)), b"", extra,
            self._times.item(row),
        )  # fmt: skip

    def clear(self) -> None:
        """Forget everything: the cache was reset."""
        self._entries.clear()
        self._free.clear()
        self._extras.clear()
        self._used = 0
        self._lost_track = False

    def _lost_rows(self, rows: list[int], blocks: Sequence[int], time: int) -> list[Lost]:
        at = np.array(rows)
        groups = self._groups[at]
        ages = np.maximum(time - self._times[at], 0)
        extras = [self._extras.pop(row, b"") for row in rows] if self._extras else []
        if not any(extras):
            extras = []
        self._free += rows
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

    def _take(self, count: int) -> list[int]:
        while self._used + count - len(self._free) > len(self._positions):
            self._make_room(self._used + count - len(self._free))
        rows = self._free[-count:]
        del self._free[-count:]
        fresh = count - len(rows)
        rows += range(self._used, self._used + fresh)
        self._used += fresh
        return rows

    def _make_room(self, needed: int) -> None:
        if self._lost_track:
            self._lost_track = False
            used = {row for row in self._entries.values() if type(row) is int}
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


def _bytes(word: int) -> bytes:
    return word.to_bytes(FINGERPRINT_BYTES, sys.byteorder)


def _array(positions: Sequence[int]) -> NDArray[np.int64]:
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step)
    return np.array(positions, np.int64)


def _lost(group: int, entries: Sequence[Any], blocks: Sequence[int], time: int) -> Lost:
    _, positions, prints, _, extras, times = zip(*entries, strict=True)
    return Lost(
        group,
        list(positions),
        b"".join(prints),
        list(extras) if any(extras) else [],
        [max(time - each, 0) for each in times],
        list(blocks),
    )
