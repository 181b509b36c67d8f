"""Keyed fingerprints of prefixes: they tell where two prompts part, and nothing of what they hold.

The fingerprint of a position is a pseudorandom function of a universal hash of all tokens before it (Wegman and Carter,
"New hash functions and their use in authentication and set equality", 1981). The hash is two sums, modulo 2**64, of
token times weight, with a secret weight for every position (the multilinear family: Lemire and Kaser, "Strongly
universal string hashing is fast", 2014): two prefixes of 32-bit tokens collide with a probability below 2**-64. The
function is AES of both sums, cut to 8 bytes. Without the key nothing can be tried out against a fingerprint, and none
says more than whether two are equal.

Sums, unlike a chained digest, are computed for a whole prompt in a few vector operations that give the interpreter
back to the scheduler's thread, and go on from any position whose sums are known. A multimodal item adds a secret
number of its own to every position behind its offset.
"""

import time
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from operator import mul
from struct import Struct
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_grid

Sums = tuple[int, int]
Words = NDArray[np.uint64]
Positions = NDArray[np.int64]

SUMS_BYTES = 16
_PAIR = Struct("<QQ")
_SLICE = 4096
_FEW = 64
"""Tokens below which plain integers are quicker than vectors."""
_GRID = 256
"""The common grid is sparser nowhere."""
_MASK = (1 << 64) - 1
_TOKEN_MASK = (1 << 32) - 1


class Printer:
    """What is secret about fingerprints: the weights of positions, and the function of the sums."""

    def __init__(self, key: bytes) -> None:
        """Derive both from `key`."""
        self._key = key
        self._cipher = Cipher(algorithms.AES(self._derive(b"function")), modes.ECB()).encryptor()
        self._few: tuple[memoryview[int], memoryview[int]]
        self._few_units: tuple[memoryview[int], memoryview[int]]
        self._weights: Words = np.empty((2, 0), np.uint64)
        self._units: Words = np.zeros((2, 1), np.uint64)
        self.reserve(1 << 14)

    def reserve(self, tokens: int) -> None:
        """Make weights for the first `tokens` positions."""
        if tokens <= self._weights.shape[1]:
            return
        count = max(tokens, 2 * self._weights.shape[1])
        stream = Cipher(algorithms.AES(self._derive(b"weights")), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(stream.update(bytes(SUMS_BYTES * count)), "<u8").astype(np.uint64)
        self._weights = np.ascontiguousarray(words.reshape(count, 2).T)
        self._units = np.zeros((2, count + 1), np.uint64)
        np.cumsum(self._weights, axis=1, out=self._units[:, 1:])
        self._few = memoryview(self._weights[0]), memoryview(self._weights[1])
        self._few_units = memoryview(self._units[0]), memoryview(self._units[1])

    def few_weights(self, start: int, end: int) -> tuple["memoryview[int]", "memoryview[int]"]:
        """Return the weights of the tokens [start, end) as plain integers."""
        first, second = self._few
        if end > len(first):
            self.reserve(end)
            first, second = self._few
        return first[start:end], second[start:end]

    def weights(self, start: int, end: int) -> Words:
        """Return the weights of the tokens [start, end): 2 rows."""
        self.reserve(end)
        return self._weights[:, start:end]

    def item(self, offset: int, identifier: bytes) -> Sums:
        """Return what a multimodal item at `offset` adds to the sums."""
        drawn = blake2b(offset.to_bytes(8, "big") + identifier, key=self._key, digest_size=SUMS_BYTES)
        return int.from_bytes(drawn.digest()[:8], "big"), int.from_bytes(drawn.digest()[8:], "big")

    def finish(self, marks: Positions, sums: Words) -> bytes:
        """Return the fingerprints, 8 bytes each, of prefixes of `marks` tokens with `sums`: a row of 2 each."""
        # Every token counts as one more than it is: else a prefix and the same with a token 0 behind it are one.
        whole = sums + self._units[:, marks].T
        encrypted = self._cipher.update(np.ascontiguousarray(whole, dtype="<u8").tobytes())
        return np.frombuffer(encrypted, np.uint64)[::2].tobytes()

    def finish_one(self, mark: int, first: int, second: int) -> bytes:
        """Return the fingerprint of a prefix of `mark` tokens with these sums."""
        units, others = self._few_units
        return self._cipher.update(_PAIR.pack((first + units[mark]) & _MASK, (second + others[mark]) & _MASK))[:8]

    def _derive(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._key, digest_size=16).digest()


class Chain:
    """The fingerprints of one request's tokens, computed once and extended as the request grows.

    Attributes:
        base: positions above it have fingerprints here.

    """

    def __init__(
        self, printer: Printer, step: int, lookahead: int = 0, items: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        """Begin with no tokens.

        Args:
            printer: the key's.
            step: tokens between fingerprints (the replica's hash block).
            lookahead: tokens beyond a position that its fingerprint covers too.
            items: (offset, identifier) of multimodal items.

        """
        self.base = 0
        self._printer = printer
        self._step = step
        self._lookahead = lookahead
        self._items = [(offset, printer.item(offset, identifier)) for offset, identifier in items]
        self._tokens = 0
        self._now: Sums = (0, 0)
        self._values = bytearray()
        self._sums = bytearray()
        self._common: dict[int, bytes] = {}
        self._plain: dict[int, bytes] = {}

    @property
    def upto(self) -> int:
        """The last position that has a fingerprint, in tokens."""
        return self.base + len(self._values) // FINGERPRINT_BYTES * self._step

    def resume(self, position: int, sums: Sums) -> None:
        """Go on from `position`, whose sums (`sums_between`) another chain of the same tokens has told; 0: begin."""
        # The sums of a position cover the lookahead behind it.
        self.base, self._tokens, self._now = position, position + self._lookahead if position else 0, sums
        self._values.clear()
        self._sums.clear()
        self._common.clear()
        self._plain.clear()

    def extend(self, tokens: Sequence[int], upto: int) -> None:
        """Compute the fingerprints of all positions whose tokens lie within the first `upto` of `tokens`."""
        while self._tokens < upto:
            start, end = self._tokens, min(upto, self._tokens + _SLICE)
            if end - start <= _FEW and self._add_few(tokens[start:end], start, end):
                continue
            if start and end - start == _SLICE:
                time.sleep(0)  # gives the interpreter back to the scheduler's thread
            own = range(self.upto + self._step + self._lookahead, end + 1, self._step)
            common = common_grid(start, end)
            marks = np.array([*own, *common], np.int64)
            sums = self._add(tokens[start:end], start, marks)
            self._tokens = end
            if len(marks):
                self._take(len(own), common, marks, sums)

    def _add(self, tokens: Sequence[int], start: int, marks: Positions) -> Words:
        """Add `tokens`, the first of which is number `start`; return the sums at `marks`, a row each."""
        words = np.frombuffer(_encode(tokens), np.uint64)
        running = np.add.accumulate(words * self._printer.weights(start, start + len(words)), axis=1)
        running += np.array(self._now, np.uint64)[:, None]
        self._now = int(running[0, -1]), int(running[1, -1])
        return running[:, marks - (start + 1)].T

    def _add_few(self, tokens: Sequence[int], start: int, end: int) -> bool:
        """Add `tokens` without vectors, which are slower for a block that was decoded; False where that cannot be."""
        mark = self.upto + self._step + self._lookahead
        marked = mark == end
        # Most blocks have no position of the common grid in them.
        common = common_grid(start, end) if start < _GRID or start // _GRID != end // _GRID else ()
        if mark < end or min(tokens) < 0 or (common and common != [end]):
            return False
        first, second = self._printer.few_weights(start, end)
        one, other = self._now
        one, other = (one + sum(map(mul, tokens, first))) & _MASK, (other + sum(map(mul, tokens, second))) & _MASK
        self._now, self._tokens = (one, other), end
        if marked or common:
            value = self._finish_one(end, one, other)
            if marked:
                self._values += value
                self._sums += _PAIR.pack(one, other)
            if common:
                self._common[end] = value
                if self._items:
                    self._plain[end] = self._printer.finish_one(end, one, other)
        return True

    def _finish_one(self, mark: int, one: int, other: int) -> bytes:
        for offset, (first, second) in self._items:
            if offset < mark:
                one, other = one + first, other + second
        return self._printer.finish_one(mark, one, other)

    def _take(self, own: int, common: Sequence[int], marks: Positions, sums: Words) -> None:
        values = self._finish(marks, sums)
        self._values += values[: own * FINGERPRINT_BYTES]
        self._sums += sums[:own].astype("<u8").tobytes()
        if common:
            self._common.update(zip(common, split(values[own * FINGERPRINT_BYTES :]), strict=True))
            if self._items:
                plain = self._printer.finish(marks[own:], sums[own:])
                self._plain.update(zip(common, split(plain), strict=True))

    def _finish(self, marks: Positions, sums: Words) -> bytes:
        if not self._items:
            return self._printer.finish(marks, sums)
        sums = sums.copy()
        for offset, added in self._items:
            sums[marks > offset] += np.array(added, np.uint64)
        return self._printer.finish(marks, sums)

    def whole(self) -> bytes:
        """Return the fingerprint of all tokens that the chain was extended to."""
        return self._finish_one(self._tokens, *self._now)

    def at(self, position: int) -> bytes:
        """Return the fingerprint at `position`, empty where there is none."""
        if position <= self.base or (position - self.base) % self._step:
            return b""
        end = (position - self.base) // self._step * FINGERPRINT_BYTES
        return bytes(self._values[end - FINGERPRINT_BYTES : end])

    def entry(self, position: int) -> tuple[bytes, bytes] | None:
        """Return the fingerprint at `position` and its sums, 16 bytes; None where there are none."""
        index, rest = divmod(position - self.base, self._step)
        end = index * FINGERPRINT_BYTES
        if rest or not 0 < end <= len(self._values):
            return None
        width = SUMS_BYTES // FINGERPRINT_BYTES
        return bytes(self._values[end - FINGERPRINT_BYTES : end]), bytes(
            self._sums[width * end - SUMS_BYTES : width * end]
        )

    def between(self, after: int, upto: int) -> bytes:
        """Return the fingerprints of the positions in (after, upto], one after the other; `after` from `base` on."""
        return _cut(self._values, FINGERPRINT_BYTES, after - self.base, upto - self.base, self._step)

    def sums_between(self, after: int, upto: int) -> bytes:
        """Return the sums at the positions in (after, upto], 16 bytes each: for `resume`, and never to be sent."""
        return _cut(self._sums, SUMS_BYTES, after - self.base, upto - self.base, self._step)

    def common(self, after: int, upto: int) -> bytes:
        """Return the fingerprints of the common grid in (after, upto]; they cover no lookahead."""
        return b"".join(self._common[mark] for mark in common_grid(after, upto))

    def plain(self, after: int, upto: int) -> bytes:
        """Return `common` without the multimodal items; empty where there are none."""
        return b"".join(self._plain[mark] for mark in common_grid(after, upto)) if self._items else b""


def split(values: bytes) -> list[bytes]:
    """Return concatenated fingerprints one by one."""
    return [values[at : at + FINGERPRINT_BYTES] for at in range(0, len(values), FINGERPRINT_BYTES)]


def read_sums(data: bytes) -> Sums:
    """Return the sums in 16 bytes of `Chain.sums_between`."""
    first, second = _PAIR.unpack(data)
    return first, second


def _cut(data: bytearray, size: int, after: int, upto: int, step: int) -> bytes:
    return bytes(data[after // step * size : upto // step * size]) if upto > after else b""


def _encode(tokens: Sequence[int]) -> "array[Any]":
    try:
        return array("Q", tokens)
    except OverflowError:  # placeholders below 0
        return array("Q", [token & _TOKEN_MASK for token in tokens])
