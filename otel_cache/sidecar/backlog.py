"""Encoded batches that wait for the collector: in memory while it keeps up, on disk while it is slow or away."""

import logging
import threading
from collections import deque
from typing import NamedTuple

from otel_cache.sidecar.spool import Encoded, Spool

_logger = logging.getLogger(__name__)

MEMORY_BYTES = 32 << 20
MEMORY_BYTES_ALONE = 128 << 20
"""Without a spool."""


class Standing(NamedTuple):
    """What became of spans, at one moment: of each it is told once.

    Attributes:
        sent: those that arrived.
        lost: those that never will.
        waiting: those that wait for the collector; of these on disk: `spooled`, in `spool_bytes` bytes.

    """

    sent: int
    lost: int
    waiting: int
    spooled: int
    spool_bytes: int


NOTHING = Standing(0, 0, 0, 0, 0)


class Backlog:
    """A queue of batches, first in, first out, between the thread that fills it and the one that sends.

    What is in memory is always older than what is on disk.
    """

    def __init__(self, spool: Spool | None, memory_bytes: int | None = None) -> None:
        """Begin with what `spool` holds; without one everything stays in memory, and the oldest go when it is full."""
        self.changed = threading.Condition()
        self._spool = spool
        self._limit = memory_bytes or (MEMORY_BYTES if spool is not None else MEMORY_BYTES_ALONE)
        self._memory: deque[Encoded] = deque()
        self._bytes = 0
        self._sent = 0
        self._dropped = 0
        self._told = 0
        self._reported = 0
        self._taken: Encoded | None = None
        self._from_memory = False

    @property
    def lost(self) -> int:
        """Spans that will never be sent."""
        return self._dropped + (self._spool.lost if self._spool is not None else 0)

    @property
    def torn(self) -> int:
        """Batches that an earlier sidecar had not finished writing to disk when it was killed."""
        return self._spool.torn if self._spool is not None else 0

    @property
    def place(self) -> str:
        """Where spans wait while the collector is away, and how much of them at the most, in words."""
        where, limit = ("memory", self._limit) if self._spool is None else (self._spool.folder, self._spool.limit)
        return f"in {where}, at most {limit / (1 << 20):.4g} MiB"

    @property
    def standing(self) -> Standing:
        """What became of all spans up to now."""
        with self.changed:
            in_memory = sum(batch.spans for batch in self._memory)
            if self._spool is None:
                return Standing(self._sent, self.lost, in_memory, 0, 0)
            spooled = self._spool.spans
            return Standing(self._sent, self.lost, in_memory + spooled, spooled, self._spool.bytes)

    @property
    def untold(self) -> int:
        """Spans that were lost and that no span has told of."""
        # What a lost batch would have told of has to be told again.
        return self.lost + self._told + (self._spool.told if self._spool is not None else 0) - self._reported

    def take_untold(self) -> int:
        """Return `untold`; the caller's next span tells of them."""
        with self.changed:
            untold = self.untold
            self._reported += untold
            return untold

    def put(self, batch: Encoded) -> None:
        """Put a batch at the end."""
        with self.changed:
            if self._spool is not None and (len(self._spool) or self._bytes + len(batch.data) > self._limit):
                self._spool.append(batch)
            else:
                self._memory.append(batch)
                self._bytes += len(batch.data)
                while self._bytes > self._limit and len(self._memory) > 1:
                    self._drop_oldest()
            self.changed.notify_all()

    def peek(self) -> Encoded | None:
        """Return the oldest batch, which stays until `sent`, `refused` or `keep` says what became of it."""
        with self.changed:
            if self._memory:
                self._taken, self._from_memory = self._memory[0], True
            else:
                self._taken, self._from_memory = self._spool.peek() if self._spool is not None else None, False
            return self._taken

    def sent(self, rejected: int = 0) -> None:
        """The batch that `peek` returned has arrived, but for `rejected` of its spans."""
        with self.changed:
            if self._taken is not None:
                self._sent += self._taken.spans - rejected
                self._dropped += rejected
                self._pop()

    def refused(self) -> None:
        """The batch that `peek` returned will never be taken."""
        with self.changed:
            if self._taken is not None:
                self._lose(self._taken)
                self._pop()

    def keep(self) -> None:
        """The collector is away: what is in memory goes to disk, where there is one."""
        with self.changed:
            self._taken = None
            if self._spool is None:
                return
            self._spool.keep()
            if self._memory:
                self._spool.prepend(list(self._memory))
                self._memory.clear()
                self._bytes = 0

    def close(self) -> int:
        """Return how many spans stay on disk for the next sidecar; what cannot is lost."""
        self.keep()
        with self.changed:
            for batch in self._memory:
                self._lose(batch)
            self._memory.clear()
            if self._spool is None:
                return 0
            kept = self._spool.spans
            self._spool.close()
            return kept

    def _pop(self) -> None:
        self._taken = None
        if self._from_memory:
            self._bytes -= len(self._memory.popleft().data)
        elif self._spool is not None:
            self._spool.pop()

    def _drop_oldest(self) -> None:
        # The first may be on its way right now: the one behind it goes.
        index = 1 if self._memory[0] is self._taken else 0
        batch = self._memory[index]
        del self._memory[index]
        self._bytes -= len(batch.data)
        if not self._dropped:
            _logger.warning("the collector is too slow or away: the oldest spans are dropped, and counted")
        self._lose(batch)

    def _lose(self, batch: Encoded) -> None:
        self._dropped += batch.spans
        self._told += batch.told
