"""When the engine's thread works in the scheduler: the sender then waits, and works while the model does."""

from contextlib import suppress
from queue import Empty, SimpleQueue
from time import time_ns

PAUSE_NS = 5_000_000
"""Turns of the sender begin no closer to each other, however short the steps are."""


class Gate:
    """A flag and a bell: the hooks on the scheduler say when its thread is at work, and ring when a step was scheduled.

    A sender that looked by itself whether its turn has come would take the interpreter from the scheduler to do so.

    Attributes:
        busy: whether a scheduler of this process is at work.

    """

    __slots__ = ("_bell", "_due", "_waiting", "busy")

    def __init__(self) -> None:
        """Begin open."""
        self.busy = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._waiting = False
        self._due = 0

    def scheduled(self, now: int) -> None:
        """A step was scheduled at `now` (ns since the epoch): the model's turn, and that of a sender that waits."""
        if self._waiting and now >= self._due:
            self._waiting = False
            self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until a step was scheduled, at most `seconds`."""
        self._waiting = True
        with suppress(Empty):
            self._bell.get(timeout=seconds)
        self._waiting = False
        self._due = time_ns() + PAUSE_NS
