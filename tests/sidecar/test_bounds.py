"""What a life of a replica holds stays bounded, whatever its process sends."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

from otel_cache.records import Batch, Chunk, Record, Reset
from otel_cache.semconv import names
from otel_cache.sidecar import requests
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.life import MAX_GATHERED
from otel_cache.sidecar.steps import MAX_OPEN_STEPS

from .support import done, evict, finished, hello, lookup, repeated, replica, step, store

Make = Callable[[int, int], list[Record]]
"""Takes the number of the first record and of the round, and returns the round's records."""


def numbered(make: Make, rounds: range, first: int) -> Iterator[Batch]:
    for number in rounds:
        records = make(first, number)
        first += len(records)
        yield Batch(0, records)


def growth(make: Make, *, warm: int, more: int) -> int:
    """Return how many bytes more are held after `more` rounds than after `warm`; spans are thrown away."""
    builder = ProcessBuilder(hello())
    builder.add(Batch(0, [replica()]))
    batches = numbered(make, range(warm + more), 1)
    tracemalloc.start()
    try:
        for _ in range(warm):
            builder.add(next(batches))
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(more):
            builder.add(next(batches))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert builder.failed == 0
    return held


def test_requests_that_never_finish(monkeypatch) -> None:
    """Every round begins another one, which is admitted, preempted, and never heard of again."""
    monkeypatch.setattr(requests.RequestTable.__init__, "__defaults__", (200, 1 << 20))

    def make(first: int, number: int) -> list[Record]:
        name = f"request-{number}"
        return [
            lookup(first, name),
            repeated(first + 1, name),
            step(first + 2, number, admitted={name: 0}, preempted=[name]),
            lookup(first + 3, name, hit=1600),
            done(first + 4, number),
        ]

    assert growth(make, warm=1000, more=4000) < 200_000


def test_one_request_that_never_finishes() -> None:
    """Ten thousand tokens of output and as many preemptions: what is known of it does not grow with them."""

    def make(first: int, number: int) -> list[Record]:
        return [
            lookup(first, hit=number % 2 * 1600),
            store(first + 1, 3, first_fingerprint=1600 * (8 + number), fingerprints=b"f" * 8),
            step(first + 2, number, admitted={"q": 0}, preempted=["q"], chunks=[Chunk("q", 0, 11910, True)]),
            done(first + 3, number),
        ]

    assert growth(make, warm=200, more=2000) < 100_000


def test_requests_that_nobody_looks_up() -> None:
    """Ends and repetitions of requests that are not known leave nothing behind."""

    def make(first: int, number: int) -> list[Record]:
        return [
            finished(first, f"r{number}"),
            repeated(first + 1, f"r{number}"),
            step(first + 2, finished=[f"r{number}"]),
        ]

    assert growth(make, warm=200, more=2000) < 50_000


def test_stores_evictions_and_resets_whose_step_never_comes() -> None:
    builder = ProcessBuilder(hello())
    builder.add(Batch(0, [replica()]))

    def make(first: int, number: int) -> list[Record]:
        return [store(first), evict(first + 1), Reset(first + 2, 0, 1)]

    made = 0
    for batch in numbered(make, range(MAX_GATHERED // 2), 1):
        made += sum(span.name in (names.STORE, names.EVICT) for span in builder.add(batch))
        assert builder.progress.held <= MAX_GATHERED
    assert made >= MAX_GATHERED
    assert builder.failed == 0


def test_steps_that_are_never_done() -> None:
    builder = ProcessBuilder(hello())
    for batch in numbered(lambda first, number: [step(first, number)], range(1000), 0):
        builder.add(batch)
        assert builder.progress.held <= MAX_OPEN_STEPS


def test_hundreds_of_thousands_of_requests_none_of_which_ends() -> None:
    """All but the latest are let go, each with its span."""
    builder = ProcessBuilder(hello())
    builder.add(Batch(0, [replica()]))

    def make(first: int, number: int) -> list[Record]:
        return [step(first, number, admitted={f"{number}-{each}": 0 for each in range(1000)})]

    ended = 0
    for number, batch in enumerate(numbered(make, range(300), 1), 1):
        ended += sum(span.name == names.REQUEST for span in builder.add(batch))
        assert ended == max(number * 1000 - requests.MAX_REQUESTS, 0)
    assert sum(span.name == names.REQUEST for span in builder.close()) == requests.MAX_REQUESTS
    assert builder.failed == 0
