"""What a check finds."""

from collections.abc import Callable, Iterable, Sequence
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
        untraced: because of it a vLLM that is started here is not traced at all.
        unrecorded: because of it no sidecar can start here, or what one gets goes nowhere.

    """

    name: str
    level: str
    says: str
    todo: str = ""
    untraced: bool = False
    unrecorded: bool = False


def ok(name: str, says: str, todo: str = "") -> Check:
    """Return a finding that is as it should be."""
    return Check(name, OK, says, todo)


def warning(name: str, says: str, todo: str = "", *, untraced: bool = False, unrecorded: bool = False) -> Check:
    """Return a finding that is worth to know."""
    return Check(name, WARNING, says, todo, untraced, unrecorded)


def problem(name: str, says: str, todo: str, *, untraced: bool = False, unrecorded: bool = False) -> Check:
    """Return a finding that keeps traces from being made or from arriving."""
    return Check(name, PROBLEM, says, todo, untraced, unrecorded)


def verdict(checks: Sequence[Check]) -> str:
    """Return in words whether a vLLM that is started in this environment would be traced."""
    if why := _names(check for check in checks if check.untraced):
        return f"vLLM started in this environment would not be traced (see {why})"
    if why := _names(check for check in checks if check.unrecorded):
        return f"vLLM started in this environment would run, but nothing would be recorded (see {why})"
    wrong = _names(check for check in checks if check.level == PROBLEM)
    but = f", but not all is well (see {wrong})" if wrong else ""
    return f"vLLM started in this environment would be traced{but}"


def _names(checks: Iterable[Check]) -> str:
    return ", ".join(dict.fromkeys(check.name for check in checks))


def guarded(name: str, find: Callable[[], Check]) -> Check:
    """Return what `find` finds; a refusal of the operating system is a problem, not a traceback."""
    try:
        return find()
    except OSError as error:
        return problem(name, f"{error.filename or name}: {error.strerror or error}", "give this user access to it")
