"""Lookups in a row that are one span, and those that take another's place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_cache.records import Batch, Lookup, Record, RepeatedLookup
from otel_cache.semconv import names
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.spans import SpanData

from .support import hello, lookup, repeated, replica, step

A, B = 0, 1600


def attempt(sequence: int, hit: int, call: int) -> Lookup:
    """Return a lookup in the call `call` of schedule, at the time 100 * sequence, with this outcome."""
    return lookup(sequence, start=100 * sequence, hit=hit, step=call)


def lookups(*records: Record) -> list[SpanData]:
    builder = ProcessBuilder(hello())
    spans = builder.add(Batch(0, [replica(), *records])) + builder.close()
    assert builder.failed == 0
    return sorted((span for span in spans if span.name == names.LOOKUP), key=lambda span: span.start)


def told(spans: list[SpanData]) -> list[tuple[object, ...]]:
    """Return hit, attempts, start, end and number of each span."""
    keys = (names.LOOKUP_HIT_TOKENS, names.LOOKUP_ATTEMPTS, names.RECORD_SEQUENCE)
    rows = [(span, *(span.attributes[key] for key in keys)) for span in spans]
    return [(hit, attempts, span.start, span.end, sequence) for span, hit, attempts, sequence in rows]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # The same again, sent whole or as a repetition.
        ([attempt(1, A, 1), attempt(2, A, 2)], [(A, 2, 100, 210, 2)]),
        ([attempt(1, A, 1), repeated(2, start=200, step=2), repeated(3, step=3)], [(A, 3, 100, 310, 3)]),
        ([attempt(1, A, 0), repeated(2, start=200), repeated(3)], [(A, 3, 100, 310, 3)]),
        # Twice in one call of schedule is one attempt.
        ([attempt(1, A, 1), attempt(2, A, 1)], [(A, 1, 100, 210, 2)]),
        ([attempt(1, A, 1), repeated(2, start=200, step=1)], [(A, 1, 100, 210, 2)]),
        # A connector falls back in every call: one row of attempts, with the outcome of the second lookup.
        ([attempt(1, A, 1), attempt(2, B, 1)], [(B, 1, 100, 210, 2)]),
        ([attempt(1, A, 1), attempt(2, B, 1), attempt(3, A, 2), attempt(4, B, 2)], [(B, 2, 100, 410, 4)]),
        ([attempt(1, A, 1), attempt(2, B, 1), repeated(3, step=2)], [(B, 2, 100, 310, 3)]),
        # It falls back but once: what was joined before is as it was.
        ([attempt(1, A, 1), repeated(2, start=200, step=2), attempt(3, A, 3), attempt(4, B, 3)],
         [(A, 2, 100, 210, 2), (B, 1, 300, 410, 4)]),
        # Another outcome in another call is another span.
        ([attempt(1, A, 1), attempt(2, B, 2), attempt(3, A, 3)],
         [(A, 1, 100, 110, 1), (B, 1, 200, 210, 2), (A, 1, 300, 310, 3)]),
    ],
)  # fmt: skip
def test_rows_of_attempts(records: list[Record], expected: list[tuple[int, ...]]) -> None:
    assert told(lookups(*records)) == expected


def test_admission_belongs_to_the_lookup_that_took_the_place() -> None:
    (span,) = lookups(attempt(1, A, 1), attempt(2, B, 1), step(3, admitted={"q": 1600}))
    assert (span.attributes[names.LOOKUP_HIT_TOKENS], span.attributes[names.LOOKUP_ADMITTED_TOKENS]) == (1600, 1600)


def test_a_repetition_of_nothing_known_is_passed_over() -> None:
    spans = lookups(repeated(1, "never heard of"), attempt(2, A, 1), step(3, admitted={"q": 0}), repeated(4))
    assert told(spans) == [(A, 1, 200, 210, 2)]


CALLS = st.lists(st.lists(st.sampled_from([A, B, -1]), min_size=1, max_size=3), min_size=1, max_size=8)


@given(CALLS)
def test_attempts_count_calls_of_schedule(calls: list[list[int]]) -> None:
    """In each call the last lookup decides; runs of calls with one outcome are one span. -1: repeated, if it can be."""
    records: list[Record] = []
    outcomes: list[int] = []
    for number, call in enumerate(calls, 1):
        outcome = outcomes[-1] if outcomes else A
        for hit in call:
            sequence = len(records) + 1
            if hit < 0 and records:
                records.append(RepeatedLookup(sequence, 0, 100 * sequence, 100 * sequence + 10, "q", number))
            else:
                outcome = max(hit, 0)
                records.append(attempt(sequence, outcome, number))
        outcomes.append(outcome)
    runs: list[list[int]] = []
    for outcome in outcomes:
        if runs and runs[-1][0] == outcome:
            runs[-1][1] += 1
        else:
            runs.append([outcome, 1])
    assert [row[:2] for row in told(lookups(*records))] == [tuple(run) for run in runs]


def test_what_is_held_is_what_no_span_tells_of() -> None:
    builder = ProcessBuilder(hello())

    def held(*records: Record) -> int:
        builder.add(Batch(0, list(records)))
        return builder.progress.held

    assert held(replica(), attempt(1, A, 1), repeated(2, step=2)) == 2
    assert held(attempt(3, B, 3)) == 3
    assert held(attempt(4, A, 4)) == 2, "the first two are a span now"
    assert held(step(5, admitted={"q": 0})) == 1, "the step itself"
    builder.close()
    assert builder.progress.held == 0
