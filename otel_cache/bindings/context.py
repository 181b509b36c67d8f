"""What the hooks need of the rest: where events go, and how a scheduler or a worker becomes known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from otel_cache.bindings.replica import Replica, Worker

Function = Callable[..., Any]
Event = tuple[Any, ...]
"""A function of `pack` and its arguments, but for the first, the number of the first record."""


@dataclass(frozen=True)
class Context:
    """What a hook is made with.

    Attributes:
        emit: takes an event; never blocks, never raises.
        flush: sends what was emitted.
        gate: is told when a scheduler works, and when it has scheduled a step.
        attach: makes a scheduler a replica.
        employ: makes a worker known, given the id of the replica whose step it runs.

    """

    emit: Callable[[Event], None]
    flush: Callable[[], None]
    gate: Any
    attach: Callable[[Any], Replica]
    employ: Callable[[Any, str], Worker]
