"""A capture's evidence as events in time, and what is missing of it."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analyzers import model
from otel_cache.semconv import names


class Event(NamedTuple):
    """Time (ns), life, `lookup`, `store` or `evict`, and the row."""

    time: int
    life: int
    kind: str
    row: dict[str, Any]


def events_of(capture: model.Capture) -> Iterator[Event]:
    """Yield the events of `capture`, each life in the order of its records, the lives merged by time."""
    frames = {"lookup": capture.lookups, "store": capture.stores, "evict": capture.evicts}
    lives: list[list[tuple[int, int, str, dict[str, Any]]]] = [[] for _ in capture.lives]
    for kind, frame in frames.items():
        for row in frame.to_dicts():
            lives[row["life"]].append((row["start"], row["sequence"], kind, row))
    streams = []
    for life, events in enumerate(lives):
        events.sort(key=lambda event: event[1])
        latest = 0
        ordered = []
        for time, sequence, kind, row in events:
            latest = max(latest, time)  # a life's own order counts for more than its clock
            ordered.append((latest, life, sequence, kind, row))
        streams.append(ordered)
    for time, life, _, kind, row in heapq.merge(*streams, key=lambda event: event[:3]):
        yield Event(time, life, kind, row)


def successors(capture: model.Capture, events: Sequence[Event]) -> dict[int, list[int]]:
    """Return, for each life, the lives of the same replica that were over when it began.

    Lives that overlap in time are replicas that share a name, not one after the other.
    """
    spans: dict[int, tuple[int, int]] = {}
    for event in events:
        spans[event.life] = (spans.get(event.life, (event.time, event.time))[0], event.time)
    replicas = [life.replica for life in capture.lives]
    return {
        life: [
            other
            for other, (_, end) in spans.items()
            if other != life and replicas[other] == replicas[life] and end < begin
        ]
        for life, (begin, _) in spans.items()
    }


class Holes:
    """Where evidence is missing: which lives have a hole by now, and which have one at all.

    Attributes:
        missing: records and spans that are known to be missing.
        any: some life has a hole.
        kept_back: of these, spans of lives that a collector thinned: it does not count what it keeps back.
        thinned: all that is known of some life has been through a sampler. What that kept back need not leave a hole:
            it may be the newest of a life, or a life as a whole.

    """

    def __init__(self, capture: model.Capture, events: Sequence[Event]) -> None:
        numbers: dict[int, dict[int, int]] = {}
        self._found = [False for _ in capture.lives]
        self._ever = [False for _ in capture.lives]
        self._gaps: list[list[int]] = [[] for _ in capture.lives]
        self.missing = 0
        self.kept_back = 0
        samplers = [{names.SAMPLER, names.COLLECTOR_SAMPLER} & set(life.attributes) for life in capture.lives]
        self.thinned = any(samplers)
        for event in events:
            row = event.row
            if row["number"] is not None:
                numbers.setdefault(event.life, {})[row["number"]] = row["sequence"]
            if row["missing"]:
                self.missing += row["missing"]
                self._ever[event.life] = True
        for life, known in numbers.items():
            absent = max(known) + 1 - len(known)
            self.missing += absent
            self.kept_back += absent if names.COLLECTOR_SAMPLER in samplers[life] else 0
            self._gaps[life] = gaps(known)
            self._ever[life] |= bool(self._gaps[life])
        self.any = any(self._ever)

    def pass_by(self, event: Event) -> None:
        """Note the holes of a life up to `event`."""
        life, row = event.life, event.row
        if row["missing"]:
            self._found[life] = True
        while self._gaps[life] and self._gaps[life][0] <= row["sequence"]:
            self._gaps[life].pop(0)
            self._found[life] = True

    def by_now(self, life: int) -> bool:
        """Whether `life` has had a hole."""
        return self._found[life]

    def ever(self, life: int) -> bool:
        """Whether `life` has a hole, earlier or later."""
        return self._ever[life]


def gaps(known: Mapping[int, int]) -> list[int]:
    """Return the sequence numbers from which on evidence is missing, ascending.

    Args:
        known: sequence number of each evidence number that the capture has. Spans are numbered as they are written,
            a lookup when its outcome is known, so a lost one may be older than its neighbours: the earliest of the
            64 before it counts.

    """
    order = sorted(known)
    starts = [-1] if order and order[0] > 0 else []
    starts += [
        min(known[number] for number in order[max(0, index - 64) : index])
        for index in range(1, len(order))
        if order[index] != order[index - 1] + 1
    ]
    return sorted(starts)
