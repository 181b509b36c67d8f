"""When the engine's thread works in the scheduler: the sender then waits, and works while the model does."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Gate:
    """A flag and a bell: the hooks on the scheduler say when its thread is at work, and ring when a step was scheduled.

    A sender that looked again and again whether its turn has come would take the interpreter from the scheduler to do
    so. Nothing is rung while nobody waits: waking a thread takes longer than all hooks of a step.

    Attributes:
        busy: whether a scheduler of this process is at work.

    """

    __slots__ = ("_bell", "_waiting", "busy")

    def __init__(self) -> None:
        """Begin open."""
        self.busy = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._waiting = False

    def scheduled(self) -> None:
        """A step was scheduled: the model's turn, and that of a sender that waits."""
        if self._waiting:
            self._waiting = False
            self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until a step was scheduled, at most `seconds`."""
        self._waiting = True
        with suppress(Empty):
            self._bell.get(timeout=seconds)
        self._waiting = False
