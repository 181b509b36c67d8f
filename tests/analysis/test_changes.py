"""What findings with one change give back together, and how it is told."""

import pytest

from analyzers.changes import Change, Given, together

INTERVAL = (("prefix_cache_retention_interval", "1600"),)
OTHER = (("prefix_cache_retention_interval", "3200"),)
ENVIRONMENT, FLAG = Change(INTERVAL, "set the variable"), Change(INTERVAL, "pass the flag")
BOTH = Change((("max_num_batched_tokens", "4800"), *INTERVAL), "set both")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], []),
        ([Given(5, "route", None), Given(9, "restart less", None)], [(9, "restart less"), (5, "route")]),
        # What gives nothing back by itself, or takes, is no fix.
        ([Given(0, "route", None), Given(-3, "cut", None)], []),
        ([Given(5, "route", None), Given(9, "route", None)], [(14, "route")]),
        # One change in one finding's words, and in those of several.
        ([Given(9, "set it, as at 9,600", FLAG)], [(9, "set it, as at 9,600")]),
        ([Given(9, "set it", FLAG), Given(8, "set it", FLAG)], [(17, "set it")]),
        (
            [Given(8000, "set it, as at 8,000", FLAG), Given(9600, "set it, as at 9,600", FLAG)],
            [(17600, "pass the flag: the fix of 2 findings, which give back 9,600 and 8,000")],
        ),
        (
            [Given(3, "a", FLAG), Given(2, "b", ENVIRONMENT), Given(1, "c", FLAG)],
            [(6, "pass the flag, and set the variable: the fix of 3 findings, which give back 3, 2 and 1")],
        ),
        # Another value, or a further setting, is another change.
        (
            [Given(9, "a", FLAG), Given(8, "b", Change(OTHER, "set more")), Given(7, "c", BOTH)],
            [(9, "a"), (8, "b"), (7, "c")],
        ),
    ],
)  # fmt: skip
def test_together(given: list[Given], told: list[tuple[int, str]]) -> None:
    assert together(given) == told
