"""The fingerprints of one request's positions, as its lookups and stores named them."""

from collections.abc import Sequence

import msgspec

from otel_cache.records import FINGERPRINT_BYTES, Span


class Prints(msgspec.Struct, gc=False):
    """Fingerprints one hash block apart: those that the latest lookup named, and those of what came after it.

    `first` and `tail_first` are the positions of the first ones, in tokens; 0 where there are none.
    """

    first: int = 0
    values: bytes = b""
    tail_first: int = 0
    tail: bytearray = msgspec.field(default_factory=bytearray)

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self.values) + len(self.tail)

    def look_up(self, first: int, values: bytes) -> None:
        """Take what a lookup named."""
        self.first, self.values = first, values
        self.tail_first = 0
        self.tail.clear()

    def extend(self, first: int, values: bytes, hash_block: int) -> None:
        """Take what a store named; where that does not follow what is known, it takes its place."""
        if first != self.tail_first + len(self.tail) // FINGERPRINT_BYTES * hash_block:
            self.tail_first = first
            self.tail.clear()
        self.tail += values

    def along(self, run: Span, grid: int, hash_block: int, suffix: bytes = b"") -> list[bytes]:
        """Return the fingerprints at the positions of a run on `grid`, as far as they are known, each with `suffix`."""
        first, last, step = run
        # Nothing is known beyond: a run that somebody made up may go on for ever.
        last = min(last, self._end(hash_block))
        if first % grid or step % grid:
            positions: Sequence[int] = [position for position in range(first, last + 1, step) if position % grid == 0]
        else:
            begin, values, size = self.first, self.values, FINGERPRINT_BYTES
            # All of them are among what the latest lookup named, as a rule.
            if 0 < begin <= first and not (first - begin) % hash_block and not step % hash_block:
                start, stop = (first - begin) // hash_block * size, (last - begin) // hash_block * size
                if stop < len(values):
                    return [values[at : at + size] + suffix for at in range(start, stop + 1, step // hash_block * size)]
            positions = range(first, last + 1, step)
        return [found + suffix for position in positions if (found := self.at(position, hash_block))]

    def _end(self, hash_block: int) -> int:
        """Return the first position, at the end, that is not known."""
        named = self.first + len(self.values) // FINGERPRINT_BYTES * hash_block
        return max(named, self.tail_first + len(self.tail) // FINGERPRINT_BYTES * hash_block)

    def at(self, position: int, hash_block: int) -> bytes:
        """Return the fingerprint at `position`, b"" where it is not known."""
        if self.first and self.first <= position:
            block, inside = divmod(position - self.first, hash_block)
            if not inside and (found := self.values[block * FINGERPRINT_BYTES : (block + 1) * FINGERPRINT_BYTES]):
                return found
        if self.tail_first and self.tail_first <= position:
            block, inside = divmod(position - self.tail_first, hash_block)
            if not inside:
                return bytes(self.tail[block * FINGERPRINT_BYTES : (block + 1) * FINGERPRINT_BYTES])
        return b""
