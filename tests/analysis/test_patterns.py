"""Names of patterns: hits of sends in time, and what they are called."""

import pytest

from analyzers.sequences import pattern


@pytest.mark.parametrize(
    ("hits", "name"),
    [
        ([0, 0, 9600, 9600], "miss-miss-hit"),
        ([9600, 0, 9600], "hit-miss-hit"),
        ([0, 9600, 11200], "short-then-full"),
        ([0, 9600, 11200, 11200], "short-then-full"),
        ([0, 9600, 8000, 9600], "miss-hit"),
        ([0, 0, 0], "never hits"),
        ([0, 9600], "miss-hit"),
        ([9600], "hit"),
    ],
)
def test_pattern(hits: list[int], name: str) -> None:
    assert pattern(hits) == name
