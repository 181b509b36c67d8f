"""What a command says beside its result, on stderr: notes, unless --quiet is given, and on a terminal how far it is."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import click

EVERY = 0.2
"""Seconds between two updates of the status line."""
MAX_NOTES = 5
_QUIET = "analyzers.cli.quiet"


def _remember(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_QUIET] = True


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_remember,
    help="Nothing on stderr but errors: no notes, no progress.",
)  # fmt: skip
"""For the group and for every command that says something: `--quiet` may stand before or after the command's name."""


def is_quiet() -> bool:
    """Whether --quiet was given."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(_QUIET))


def printable(text: str) -> str:
    """Return `text` without what a terminal would take for a command: control characters are written out."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Write a line to stderr."""
    if not is_quiet():
        click.echo(printable(text), err=True)


def say_notes(notes: Sequence[str], more: str = "; --format json has them all") -> None:
    """Write the first notes to stderr, and how many are left."""
    for note in notes[:MAX_NOTES]:
        say(f"note: {note}")
    if len(notes) > MAX_NOTES:
        say(f"note: {len(notes) - MAX_NOTES} more notes{more}")


class StatusLine:
    """A line of a terminal that says how far something is, written over and over, and cleared at the end.

    Where stderr is no terminal, or --quiet is given, it says nothing.
    """

    def __init__(self) -> None:
        """Write nothing yet."""
        self._shown = sys.stderr.isatty() and not is_quiet()
        self._next = 0.0
        self._width = 0

    def show(self, text: str, *, now: bool = False) -> None:
        """Show `text`, unless the last one has only just been shown; `now`: even then."""
        if self._shown and (now or time.monotonic() >= self._next):
            self._next = time.monotonic() + EVERY
            self._write(printable(text))

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)

    def __enter__(self) -> Self:
        """Return the line."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Clear the line."""
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()


def bar(length: int, label: str) -> Any:
    """Return a progress bar of click's on stderr, for a known number of steps; hidden where a status line would be."""
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=is_quiet() or not sys.stderr.isatty())
