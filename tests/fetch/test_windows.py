"""Windows of time: all that lies in them is found, however little a back end gives at once."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.fetch.windows import Page, Window, WindowTooWideError, parse_window, walk
from otel_cache.errors import UsageError

HOUR = 3_600_000_000_000
NOW = 1_800_000_000_000_000_000


def found(
    times: Sequence[int], whole: Window, finest: int, limit: int, widest: int | None = None, cap: int = 1 << 62
) -> tuple[set[int], list[Window], int]:
    """Walk a back end that holds a trace at each of `times`: what was found, what was truncated, and the searches."""
    searches = 0

    def search(window: Window, limit: int) -> Page:
        nonlocal searches
        searches += 1
        if widest is not None and window.end - window.begin > widest:
            raise WindowTooWideError("range exceeds")
        asked = min(limit, cap)
        there = [index for index, time in enumerate(times) if window.begin <= time <= window.end][:asked]
        return Page(len(there), asked, [{"index": index} for index in there])

    got: set[int] = set()
    truncated = []
    for window, page in walk(whole, finest, limit, search):
        got |= {trace["index"] for trace in page.traces}
        truncated += [window] if page.full else []
    return got, truncated, searches


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 10_000), max_size=60),
    st.integers(0, 5_000),
    st.integers(1, 5_000),
    st.integers(1, 60),
    st.integers(1, 100),
    st.none() | st.integers(200, 20_000),
    st.integers(1, 100),
)
def test_everything_is_found_or_told(
    times: list[int], begin: int, length: int, limit: int, finest: int, widest: int | None, cap: int
) -> None:
    """What is not found lies in a window that is said to be truncated, since the back end gave no more."""
    whole = Window(begin, begin + length)
    got, truncated, _ = found(times, whole, finest, limit, widest, cap)
    for index, time in enumerate(times):
        if whole.begin <= time <= whole.end and index not in got:
            assert any(window.begin <= time <= window.end for window in truncated)
    assert all(window.end - window.begin <= finest for window in truncated)
    assert not truncated or cap <= len(times)


def test_full_windows_are_halved_no_more_than_needed() -> None:
    """1,000 traces over an hour, 100 at once: some tens of searches, and nothing truncated."""
    times = list(range(0, HOUR, HOUR // 1000))
    got, truncated, searches = found(times, Window(0, HOUR), 1_000_000, 100)
    assert (len(got), truncated) == (len(times), [])
    assert searches <= 40


def test_one_search_where_one_is_enough() -> None:
    """Nothing is asked twice."""
    assert found([5], Window(0, HOUR), 1_000_000, 100) == ({0}, [], 1)


def test_a_range_that_is_refused_is_not_asked_again() -> None:
    """A year in weeks: windows do not grow past what the back end takes."""
    week, year = 168 * HOUR, 365 * 24 * HOUR
    _, _, searches = found([], Window(0, year), 1_000_000_000, 100, week)
    assert year / week <= searches <= 4 * year / week


def test_a_refusal_of_the_finest_window_is_an_error() -> None:
    """It cannot be asked for less."""
    with pytest.raises(UsageError, match="range exceeds"):
        found([], Window(0, HOUR), 1_000_000_000, 100, 10)


@pytest.mark.parametrize(
    ("since", "until", "window"),
    [
        ("1h", None, Window(NOW - HOUR, NOW)),
        ("90s", "30s", Window(NOW - 90_000_000_000, NOW - 30_000_000_000)),
        ("2027-01-15T07:00:00", "2027-01-15T09:30:00+02:00", Window(NOW - HOUR, NOW - HOUR // 2)),
        ("1h", "2099-01-01", Window(NOW - HOUR, NOW)),
        ("99999d", None, Window(0, NOW)),
    ],
)
def test_since_and_until(since: str, until: str | None, window: Window) -> None:
    """So long ago, or a time, in UTC unless it says."""
    assert parse_window(since, until, NOW) == window


@pytest.mark.parametrize(
    ("since", "until", "says"),
    [
        ("yesterday", None, "--since yesterday: neither a time"),
        ("-1h", None, "--since -1h: neither"),
        ("", None, "--since : neither"),
        ("9" * 400 + "d", None, "neither a time"),
        ("1h", "soon", "--until soon: neither"),
        ("2099-01-01", None, "in the future"),
        ("1h", "2h", "nothing lies between"),
        ("0s", None, "in the future"),
    ],
)
def test_times_that_cannot_be(since: str, until: str | None, says: str) -> None:
    """Each says what is wrong."""
    with pytest.raises(UsageError, match=says):
        parse_window(since, until, NOW)
