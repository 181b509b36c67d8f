"""Windows of time, and how they are walked through: a back end answers with so many traces at most."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analyzers.choice import moment, offset
from otel_cache.errors import UsageError

SPARSE = 4
"""A window that brings less than a quarter of what it may is followed by one of twice its width."""


class WindowTooWideError(Exception):
    """The back end refuses a window as wide as this; never leaves the package."""


@dataclass(frozen=True)
class Window:
    """From `begin` to `end`, nanoseconds since the epoch."""

    begin: int
    end: int

    def __str__(self) -> str:
        """Return both ends as UTC, to the second."""
        return f"{clock(self.begin)} to {clock(self.end)}"


@dataclass(frozen=True)
class Page:
    """What a back end found in a window.

    Attributes:
        count: traces.
        asked: traces that it was asked for, at the most; fewer than wanted where it gives no more at once.
        traces: the traces as `{"resourceSpans": [...]}`; what loads them one by one does so while this is read.

    """

    count: int
    asked: int
    traces: Iterable[dict[str, Any]]

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return self.count >= self.asked


def walk(
    whole: Window, finest: int, limit: int, search: Callable[[Window, int], Page]
) -> Iterator[tuple[Window, Page]]:
    """Yield windows that cover `whole`, and what is in each; there is more where a page is full.

    A window whose page is full is halved, down to `finest` nanoseconds. Of the finest more than `limit` traces are
    asked for, as many as the back end gives. Windows grow again where little is found. Neighbours share an end: what
    begins there comes twice.
    """
    begin, widest = whole.begin // finest * finest, _rounded(whole.end - whole.begin, finest)
    width = widest
    while begin < whole.end:
        window = Window(begin, min(begin + width, _rounded(whole.end - begin, finest) + begin))
        try:
            page = search(window, limit)
        except WindowTooWideError as error:
            if width <= finest:
                raise UsageError(str(error)) from error
            width = widest = _rounded(width // 2, finest)
            continue
        if page.full and width > finest:
            width = _rounded(width // 2, finest)
            continue
        more = limit
        while page.full and page.asked == more:
            more *= 2
            page = search(window, more)
        yield window, page
        begin = window.end
        if page.count * SPARSE < limit:
            width = min(2 * width, widest)


def _rounded(width: int, finest: int) -> int:
    """Return `width` as a whole number of the finest steps, one at least."""
    return max(1, -(-width // finest)) * finest


def parse_window(since: str, until: str | None, now: int) -> Window:
    """Return the window that `--since` and `--until` mean; `1h` is an hour before `now`, in ns since the epoch.

    Raises:
        UsageError: a time that is none, one in the future, or no time between them.

    """
    begin = _time(since, now, "--since")
    end = now if until is None else _time(until, now, "--until")
    if begin >= now:
        raise UsageError(f"--since {since}: {clock(begin)} is in the future")
    if begin >= end:
        raise UsageError(f"--since {since} and --until {until}: nothing lies between {clock(begin)} and {clock(end)}")
    return Window(max(begin, 0), min(end, now))


def _time(text: str, now: int, option: str) -> int:
    before = offset(text)
    try:
        return now - before if before is not None else moment(text, now, option)
    except UsageError:
        raise UsageError(
            f"{option} {text}: neither a time such as 2026-05-01T12:00:00 (UTC) nor so long ago as 90s, 10m, 2h or 7d"
        ) from None


def clock(time: int) -> str:
    """Return a time in ns since the epoch as UTC, to the second."""
    return datetime.fromtimestamp(time // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
