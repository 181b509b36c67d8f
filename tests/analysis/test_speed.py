"""How long computing lost tokens takes: a range of the capture's own steps, for every replica."""

from hypothesis import given
from hypothesis import strategies as st

from analyzers.speed import Speed, total_seconds

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
