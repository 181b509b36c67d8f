"""How long computing lost tokens takes: a range of the capture's own steps, for every replica."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.speed import Speed, speeds, total_seconds

RATES = st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)).map(lambda pair: (min(pair), max(pair)))
KNOWN = st.dictionaries(st.integers(0, 4), st.builds(Speed, st.none() | RATES, st.none(), st.just(1.0)))
TOKENS = st.dictionaries(st.integers(0, 4), st.integers(0, 10**9), min_size=1)


def test_a_replica_that_shows_no_speed_is_not_taken_for_infinitely_fast() -> None:
    known = {0: Speed((100.0, 200.0), None, 1.0), 1: Speed((50.0, 400.0), None, 1.0), 2: Speed(None, None, 1.0)}
    assert total_seconds({0: 1000}, known) == (5.0, 10.0)
    assert total_seconds({2: 1000}, known) == total_seconds({3: 1000}, known) == (2.5, 20.0)
    assert total_seconds({0: 1000, 2: 1000}, known) == (7.5, 30.0)
    assert total_seconds({0: 1000}, {2: known[2]}) is None


@given(TOKENS, KNOWN)
def test_the_range_is_one(tokens: dict[int, int], known: dict[int, Speed]) -> None:
    seconds = total_seconds(tokens, known)
    assert (seconds is None) == (not any(speed.prefill for speed in known.values()))
    if seconds is not None:
        assert 0 <= seconds[0] <= seconds[1]


def steps(*done: tuple[int, float]) -> pl.DataFrame:
    """Return prefill steps of one replica: tokens and seconds of each."""
    return pl.DataFrame(
        {
            "life": [0 for _ in done], "prefill_tokens": [tokens for tokens, _ in done],
            "decode_tokens": [0 for _ in done], "running_requests": [1 for _ in done],
            "execute_duration": [seconds for _, seconds in done],
        }
    )  # fmt: skip


def test_one_slow_step_is_no_speed() -> None:
    """Twenty steps of 1,000 tokens took 10 ms each, one 500 ms: 5,000 tokens took 50 ms, not up to 2.5 s."""
    known = speeds(steps(*[(1000, 0.01)] * 20, (1000, 0.5)))
    assert known[0].prefill == pytest.approx((1e5, 1e5))
    assert total_seconds({0: 5000}, known) == pytest.approx((0.05, 0.05))
    assert total_seconds({0: 21000}, known) == pytest.approx((0.7, 0.7))


def test_a_decile_is_one_of_tokens() -> None:
    """Of 10,000 tokens 8,000 took 1 ms a thousand, in one step, the others 2 ms a thousand, in one that is as long."""
    known = speeds(steps((8000, 0.008), (2000, 0.004)))
    assert known[0].prefill == pytest.approx((5e5, 1e6))
    # 4,000 at the fast decile; at the slow one 8 ms, but only 2,000 tokens were that slow.
    assert total_seconds({0: 4000}, known) == pytest.approx((0.004, 0.004 + 0.002))
    # Past what was measured it goes on at both.
    assert total_seconds({0: 11000}, known) == pytest.approx((0.012 + 0.001, 0.012 + 0.002))


STEPS = st.lists(st.tuples(st.integers(1, 20_000), st.floats(1e-6, 10)), min_size=1, max_size=30)


@given(STEPS, st.floats(0, 1), st.floats(0, 1))
def test_no_more_than_was_measured(done: list[tuple[int, float]], one: float, other: float) -> None:
    """All tokens took what their steps took; a part of them no more, and no less than as many in the fastest steps."""
    known = speeds(steps(*done))
    tokens, measured = sum(each for each, _ in done), sum(seconds for _, seconds in done)
    assert total_seconds({0: tokens}, known) == pytest.approx((measured, measured))
    fewer, more = (total_seconds({0: round(share * tokens)}, known) for share in sorted((one, other)))
    assert fewer
    assert more
    assert 0 <= fewer[0] <= fewer[1] <= measured * (1 + 1e-9)
    assert fewer[0] <= more[0] * (1 + 1e-9) + 1e-12
    assert fewer[1] <= more[1] * (1 + 1e-9) + 1e-12
    fastest = min(seconds / each for each, seconds in done)
    assert more[0] >= round(max(one, other) * tokens) * fastest * (1 - 1e-9)
