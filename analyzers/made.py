"""Fields whose values are made when they are asked for."""

from collections.abc import Callable
from typing import Any


class _Made:
    """A field in whose place a callable may stand: it makes the value, of the object, each time that it is asked for.

    Sentences are many and long, and few of them are ever read.
    """

    __slots__ = ("_slot",)

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        value = self._slot.__get__(owner)
        return value(owner) if callable(value) else value

    def __set__(self, owner: Any, value: Any) -> None:
        self._slot.__set__(owner, value)


def made(by: Callable[[Any], Any]) -> Any:
    """Return `by` to stand for a field that it makes of its object."""
    return by


def made_when_asked(*fields: str) -> Callable[[type[Any]], Any]:
    """Let a callable stand for each of the `fields` of a class with slots."""

    def change(of: type[Any]) -> type[Any]:
        for name in fields:
            setattr(of, name, _Made(getattr(of, name)))
        return of

    return change
