"""The bounded ring between vLLM's threads and the sender: pushing copies a reference and leaves."""

from collections import deque
from typing import Any

CAPACITY = 16_384
"""Seconds of a busy engine; an event may hold a step's output, some kilobytes of it."""


class Ring:
    """A bounded queue of captured events. `push` never blocks, never raises; what does not fit is counted."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[tuple[Any, ...]] = deque()
        self._capacity = capacity
        self.dropped = 0

    def push(self, event: tuple[Any, ...]) -> None:
        """Append `event`, or count it as dropped where the ring is full."""
        if len(self._events) >= self._capacity:
            self.dropped += 1
            return
        self._events.append(event)

    def pop(self) -> tuple[Any, ...] | None:
        """Return the oldest event, or None where the ring is empty."""
        try:
            return self._events.popleft()
        except IndexError:
            return None

    def __len__(self) -> int:
        return len(self._events)
