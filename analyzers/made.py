"""Fields whose values are made when they are asked for."""

from collections.abc import Callable
from typing import Any


def _made(slot: Any) -> property:
    """Return a field in whose place a callable may stand: it makes the value when it is asked for.

    Sentences are many and long, and few of them are ever read.
    """

    def get(owner: Any) -> Any:
        value = slot.__get__(owner)
        return value(owner) if callable(value) else value

    # To set it takes no frame of the interpreter.
    return property(get, slot.__set__)


def made(by: Callable[[Any], Any]) -> Any:
    """Return `by` to stand for a field that it makes of its object."""
    return by


def made_when_asked(*fields: str) -> Callable[[type[Any]], Any]:
    """Let a callable stand for each of the `fields` of a class with slots."""

    def change(of: type[Any]) -> type[Any]:
        for name in fields:
            setattr(of, name, _made(getattr(of, name)))
        return of

    return change
