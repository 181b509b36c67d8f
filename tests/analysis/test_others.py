"""Which other request named an identity last before, against a search through all that came before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import others

IDENTITIES = st.sampled_from([0, 1, 2, 3, 1 << 60, (1 << 60) + 1, 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFF])
"""Some differ in their lowest bits only, some in their highest."""
ACTS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.tuples(IDENTITIES, st.booleans()), max_size=6)), min_size=1, max_size=12
)
"""By act: its owner, and the identities that it named, False for those that it only asked for."""


def searched(named: list[int], acts: list[int], owners: list[int], had: list[bool]) -> list[int]:
    """Return the answer by going back from each."""
    return [
        next(
            (
                acts[before]
                for before in range(place - 1, -1, -1)
                if named[before] == identity and had[before] and owners[acts[before]] != owners[acts[place]]
            ),
            -1,
        )
        for place, identity in enumerate(named)
    ]


@pytest.mark.parametrize("at_once", [others.AT_ONCE, 3], ids=["all at once", "in parts"])
@given(ACTS)
def test_latest_others(at_once: int, told: list[tuple[int, list[tuple[int, bool]]]]) -> None:
    owners = [owner for owner, _ in told]
    rows = [(identity, act, had) for act, (_, naming) in enumerate(told) for identity, had in naming]
    named, acts, had = ([row[column] for row in rows] for column in range(3))
    before, others.AT_ONCE = others.AT_ONCE, at_once
    try:
        found = others.latest_others(
            np.array(named, np.uint64), np.array(acts, np.int64), np.array(owners, np.int64), np.array(had, np.bool_)
        )
    finally:
        others.AT_ONCE = before
    assert found.tolist() == searched(named, acts, owners, had)


@given(ACTS)
def test_all_count_where_none_is_only_asked_for(told: list[tuple[int, list[tuple[int, bool]]]]) -> None:
    owners = [owner for owner, _ in told]
    rows = [(identity, act) for act, (_, naming) in enumerate(told) for identity, _ in naming]
    named, acts = ([row[column] for row in rows] for column in range(2))
    found = others.latest_others(np.array(named, np.uint64), np.array(acts, np.int64), np.array(owners, np.int64))
    assert found.tolist() == searched(named, acts, owners, [True] * len(rows))


@given(ACTS, ACTS)
def test_series_of_the_same_acts(
    one: list[tuple[int, list[tuple[int, bool]]]], other: list[tuple[int, list[tuple[int, bool]]]]
) -> None:
    """Several series, each with its acts ascending, are one: what a series names the others find."""
    count = min(len(one), len(other))
    owners = [owner for owner, _ in one[:count]]
    series = []
    for told in (one, other):
        rows = [(identity, act) for act, (_, naming) in enumerate(told[:count]) for identity, _ in naming]
        series.append(([row[0] for row in rows], [row[1] for row in rows]))
    arrays = [(np.array(named, np.uint64), np.array(acts, np.int64)) for named, acts in series]
    found = others.latest_among(np.array(owners, np.int64), arrays[:1], arrays[1])
    merged = sorted(
        [(act, 0, place, identity) for place, (identity, act) in enumerate(zip(*series[0], strict=True))]
        + [(act, 1, place, identity) for place, (identity, act) in enumerate(zip(*series[1], strict=True))]
    )
    expected: list[dict[int, int]] = [{}, {}]
    answers = searched([row[3] for row in merged], [row[0] for row in merged], owners, [row[1] == 0 for row in merged])
    for (_, which, place, _), answer in zip(merged, answers, strict=True):
        expected[which][place] = answer
    assert [each.tolist() for each in found] == [[own[place] for place in range(len(own))] for own in expected]
