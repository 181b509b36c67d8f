"""The whole analysis: a capture in, results out. Pure."""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from analyzers.capacity import capacity_of, most_of
from analyzers.choice import Choice
from analyzers.counters import check_counters
from analyzers.coverage import coverage_of
from analyzers.families import families_of
from analyzers.findings import findings
from analyzers.fleet import fleet_of
from analyzers.intervals import pools_of
from analyzers.model import BY_DESIGN, CLASSES, SERVED, UNEXPLAINED, UNKNOWN, Analysis, Capture, LookupResult, Range
from analyzers.observations import observations
from analyzers.replay import Replay
from analyzers.results import lookup_results, passes_of
from analyzers.routers import routed_of, with_routers
from analyzers.same_ids import named_apart
from analyzers.sequences import sequences
from analyzers.speed import Speed, speeds, total_seconds

NOT_AVOIDABLE = BY_DESIGN | SERVED | {UNEXPLAINED, UNKNOWN}


def analyze(capture: Capture, choice: Choice | None = None) -> Analysis:
    """Explain every lookup of `capture`, and sum up those of `choice` (all of them by default).

    What nobody else holds of the capture is gone as soon as it is not needed any more.

    Raises:
        CaptureError: a replica's resource lacks what prediction needs.

    """
    given = [capture]
    del capture
    with _collector_off():
        return _analyze(given, choice)


def _analyze(given: list[Capture], choice: Choice | None) -> Analysis:
    capture = named_apart(given.pop())
    known, passes, counters = speeds(capture.steps), passes_of(capture.groups), check_counters(capture)
    capture = replace(capture, steps=most_of(capture.steps), groups=capture.groups.clear())
    given.append(capture)
    # Of lookups and stores the replay alone has more than their times.
    lookups, stores = (frame.select("start") for frame in (capture.lookups, capture.stores))
    capture = replace(capture, lookups=lookups, stores=stores)
    replay = Replay(given.pop())
    replayed = replay.run()
    caches, settings, holes = replay.caches, replay.settings, replay.holes
    del replay
    coverage = coverage_of(capture, holes)
    everything = lookup_results(replayed, capture.lives, passes, families_of(replayed))
    del passes
    everything = with_routers(capture, everything)
    results = choice.of(everything) if choice else everything
    lost, computed = _lost(results)
    fleet, capacity = fleet_of(results, caches, coverage.replicas), capacity_of(capture, caches, results)
    routed = routed_of(results)
    found = findings(results, settings, known, pools_of(caches, capture)) + observations(
        capture, results, settings, known, fleet, capacity, holes, counters, routed
    )
    return Analysis(
        coverage=replace(coverage, lookups=len(results)),
        replicas={life.replica: life.attributes for life in capture.lives},
        lookups=results,
        sequences=sequences(replayed, results, capture.requests),
        findings=sorted(found, key=lambda each: (-each.tokens_lost, each.rule, each.summary)),
        lost={cls: lost[cls] for cls in CLASSES if lost.get(cls)},
        fleet=fleet,
        capacity=capacity,
        prefill_seconds=_seconds(computed, known, SERVED),
        avoidable_seconds=_seconds(computed, known, NOT_AVOIDABLE),
        counters=counters,
        routed=routed,
    )


@contextmanager
def _collector_off() -> Iterator[None]:
    """Leave out the search for cycles: nothing here makes any, and the objects are many."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _lost(results: Sequence[LookupResult]) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    """Return the tokens lost to each class; and those that had to be computed, by life and class."""
    lost: dict[str, int] = {}
    computed: dict[int, dict[str, int]] = {}
    for result in results:
        own = computed.setdefault(result.life, {})
        for cls, count in result.lost.items():
            lost[cls] = lost.get(cls, 0) + count
            if count > 0:
                own[cls] = own.get(cls, 0) + count
    return lost, computed


def _seconds(
    computed: Mapping[int, Mapping[str, int]], known: dict[int, Speed], spared: Collection[str]
) -> Range | None:
    """Return how long computing those tokens took that are not of the classes `spared`."""
    tokens = {life: sum(count for cls, count in own.items() if cls not in spared) for life, own in computed.items()}
    return total_seconds(tokens, known)
