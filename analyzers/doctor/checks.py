"""What a check finds."""

from collections.abc import Callable
from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        level: `OK`, `WARNING` (it works, or may, and there is something to know), or `PROBLEM` (it does not work).
        says: what was found.
        todo: what to do about it, empty where there is nothing to do.

    """

    name: str
    level: str
    says: str
    todo: str = ""


def ok(name: str, says: str, todo: str = "") -> Check:
    """Return a finding that is as it should be."""
    return Check(name, OK, says, todo)


def warning(name: str, says: str, todo: str = "") -> Check:
    """Return a finding that is worth to know."""
    return Check(name, WARNING, says, todo)


def problem(name: str, says: str, todo: str) -> Check:
    """Return a finding that keeps traces from being made or from arriving."""
    return Check(name, PROBLEM, says, todo)


def guarded(name: str, find: Callable[[], Check]) -> Check:
    """Return what `find` finds; a refusal of the operating system is a problem, not a traceback."""
    try:
        return find()
    except OSError as error:
        return problem(name, f"{error.filename or name}: {error.strerror or error}", "give this user access to it")
