"""When the engine's thread works in the scheduler: the sender then waits, and works while the model does."""


class Gate:
    """One flag, set by the hooks on the scheduler.

    Attributes:
        busy: whether a scheduler of this process is at work.

    """

    __slots__ = ("busy",)

    def __init__(self) -> None:
        """Begin open."""
        self.busy = False
