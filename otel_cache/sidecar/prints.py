"""The fingerprints of one request's positions, as its lookups and stores named them."""

from dataclasses import dataclass, field

from otel_cache.records import FINGERPRINT_BYTES


@dataclass(slots=True)
class Prints:
    """Fingerprints one hash block apart: those that the latest lookup named, and those of what came after it.

    `first` and `tail_first` are the positions of the first ones, in tokens; 0 where there are none.
    """

    first: int = 0
    values: bytes = b""
    tail_first: int = 0
    tail: bytearray = field(default_factory=bytearray)

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

    def at(self, position: int, hash_block: int) -> bytes:
        """Return the fingerprint at `position`, b"" where it is not known."""
        for first, values in ((self.first, self.values), (self.tail_first, self.tail)):
            block, inside = divmod(position - first, hash_block)
            start = block * FINGERPRINT_BYTES
            if first and block >= 0 and not inside and start < len(values):
                return bytes(values[start : start + FINGERPRINT_BYTES])
        return b""
