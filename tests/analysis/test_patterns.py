"""Names of patterns: hits of sends in time, and what they are called."""

import pytest

from analyzers.model import LookupResult
from analyzers.sequences import name_across, pattern


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


def sends(*pairs: tuple[str, int]) -> list[LookupResult]:
    """Return lookups of one prompt, each on a replica, with a hit."""
    return [
        LookupResult(f"r{place}", replica, 0, place, 1, 9999, hit, hit, 9600, {}, [], [])
        for place, (replica, hit) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([("a", 0), ("b", 0)], "one send per replica"),
        ([("a", 0), ("b", 0), ("c", 0)], "one send per replica"),
        ([("a", 0), ("b", 0), ("a", 0)], "never hits"),
        ([("a", 0), ("b", 0), ("a", 9600)], "once per replica"),
        ([("a", 0), ("b", 9600)], "miss-hit"),
        ([("a", 0), ("b", 0), ("a", 9600), ("b", 0)], "miss-miss-hit-miss"),
    ],
)
def test_across_replicas(rows: list[tuple[str, int]], name: str) -> None:
    """A replica that was sent a prompt once could not have hit it."""
    assert name_across(sends(*rows)) == name
