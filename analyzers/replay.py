"""Replays a capture event by event, all replicas in time, and explains every lookup at its moment."""

import heapq
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers import model
from analyzers.ladder import Explained, Seen, explain
from analyzers.prompts import UNKNOWN, Prompt, PromptBook, common_prefix, contains, marks_of
from analyzers.residency import Loss, Residency
from analyzers.seen import SeenPrefixes
from analyzers.settings import Settings, read_settings
from otel_cache.semconv.positions import parse_positions

Event = tuple[int, int, str, dict[str, Any]]
"""Time (ns), life, `lookup`, `store` or `evict`, and the row."""


@dataclass(frozen=True)
class Replayed:
    """One lookup with its explanation.

    Attributes:
        row: its row in `Capture.lookups`.
        prompt: its tokens.
        explained: its ladder; None where the evidence has holes and nothing can be said.
        relative: index (into the replayed lookups) of the latest earlier lookup that shares the longest prefix.
        shared: tokens of that prefix.
        holds_producer: whether its prompt contains all that is named of the one whose request refused the boundary.

    """

    row: Mapping[str, Any]
    settings: Settings
    prompt: Prompt
    residency: "Snapshot"
    explained: Explained | None
    relative: int | None
    shared: int
    holds_producer: bool


@dataclass(frozen=True)
class Snapshot:
    """Per group: deepest state at or below the needed boundary, nearest one above (None: none), in tokens.

    For the groups that lack one: what the mask wanted of the request that computed the boundary, and what of that
    was never made.
    """

    below: Sequence[int | None]
    above: Sequence[int | None]
    wanted: Mapping[int, Sequence[int]]
    unmade: Mapping[int, Sequence[int]]


class Replay:
    """The state of a replay: a cache per life, and what requests have been seen; `settings` are by life."""

    def __init__(self, capture: model.Capture) -> None:
        self._capture = capture
        self.settings = [read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives]
        self._caches = [Residency(settings) for settings in self.settings]
        self._books: dict[tuple[str, int, int], PromptBook] = {}
        self._seen = SeenPrefixes()
        self._plain = SeenPrefixes()
        self._lookup_of: dict[int, int] = {}
        self._latest_lookup: dict[tuple[int, str], int] = {}
        self._keyed = any(row for row in capture.lookups["key"].to_list())
        self._prompts: dict[tuple[int, str], Prompt] = {}
        self._first_seen: dict[tuple[int, str], int] = {}
        self._holes = [False for _ in capture.lives]
        self._gaps: list[list[int]] = [[] for _ in capture.lives]
        self._progress: dict[tuple[int, str], list[tuple[int, list[range]]]] = {}
        self._ends: dict[int, list[int]] = {}
        self.missing = 0
        self.replayed: list[Replayed] = []

    def run(self) -> list[Replayed]:
        """Replay everything; return the lookups in order."""
        events = list(self._events())
        self._foresee(events)
        self._successors(events)
        for time, life, kind, row in events:
            for predecessor in self._ends.pop(life, ()):
                self._caches[predecessor].end(Loss(time, "", "reset"))
            self._check_holes(life, row)
            if kind == "lookup":
                self._lookup(time, life, row)
            elif kind == "store":
                self._store(time, life, row)
            else:
                self._caches[life].evict(row)
        return self.replayed

    def _events(self) -> Iterator[Event]:
        """Yield (time, life, kind, row), each life in the order of its records, the lives merged by time."""
        frames = {"lookup": self._capture.lookups, "store": self._capture.stores, "evict": self._capture.evicts}
        lives: list[list[tuple[int, int, str, dict[str, Any]]]] = [[] for _ in self._capture.lives]
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
            yield time, life, kind, row

    def _check_holes(self, life: int, row: Mapping[str, Any]) -> None:
        if row["missing"]:
            self.missing += row["missing"]
            self._holes[life] = True
        while self._gaps[life] and self._gaps[life][0] <= row["sequence"]:
            self._gaps[life].pop(0)
            self._holes[life] = True

    def _foresee(self, events: Sequence[Event]) -> None:
        """Note what the replay has to know in advance: where spans are missing, and how far producers got."""
        numbers: dict[int, dict[int, int]] = {}
        for time, life, kind, row in events:
            if row["number"] is not None:
                numbers.setdefault(life, {})[row["number"]] = row["sequence"]
            if kind == "store":
                runs = self._registered(self.settings[life], row)
                if runs:
                    self._progress.setdefault((life, row["request_id"]), []).append((time, runs))
        for life, known in numbers.items():
            self.missing += max(known) + 1 - len(known)
            self._gaps[life] = gaps(known)

    def _successors(self, events: Sequence[Event]) -> None:
        """Note which lives are over when another of the same replica begins: what they held went with them.

        Lives that overlap in time are replicas that share a name, not one after the other.
        """
        spans: dict[int, tuple[int, int]] = {}
        for time, life, _, _ in events:
            spans[life] = (spans.get(life, (time, time))[0], time)
        for life, (begin, _) in spans.items():
            replica = self._capture.lives[life].replica
            self._ends[life] = [
                other
                for other, (_, end) in spans.items()
                if other != life and self._capture.lives[other].replica == replica and end < begin
            ]

    def _registered(self, settings: Settings, row: Mapping[str, Any]) -> list[range]:
        """Return the positions that a store row registers in a dense group, or computes where there is none."""
        dense = settings.dense_groups
        if dense and row["group"] != dense[0].index:
            return []
        columns = ("stored",) if dense else ("stored", "masked", "not_materialized")
        return [run for column in columns for run in parse_positions(row[column])]

    def _book(self, settings: Settings) -> PromptBook:
        key = (settings.fingerprint_key_id, settings.hash_block, settings.lookahead)
        return self._books.setdefault(key, PromptBook())

    def _lookup(self, time: int, life: int, row: Mapping[str, Any]) -> None:
        settings = self.settings[life]
        prompt = self._book(settings).read(settings, row)
        name = (life, row["request_id"])
        self._first_seen.setdefault(name, time)
        seen, relative = self._seen_of(settings, prompt, name)
        explained = None
        named = prompt.whole != UNKNOWN and UNKNOWN not in prompt.chain
        if named and settings.predictable and not self._holes[life] and settings.prefix_caching:
            explained = explain(
                prompt,
                row["max_hit_tokens"],
                seen,
                self._caches[life],
                [cache for cache in self._caches if _comparable(cache.settings, settings)],
                lambda after: self._coming(prompt.chain, settings, after, time, name),
            )
        needed = explained.needed if explained else row["hit_tokens"]
        snapshot = self._snapshot(life, prompt.chain, needed, explained)
        producer = next((e.refusal.request for e in explained.missing if e.refusal), None) if explained else None
        whole = producer is not None and contains(prompt, self._prompts[life, producer])
        self.replayed.append(Replayed(row, settings, prompt, snapshot, explained, relative, seen.same_key, whole))
        self._prompts[name] = prompt
        self._latest_lookup[name] = len(self.replayed) - 1
        self._remember(prompt, name, 0)

    def _snapshot(self, life: int, chain: "array[int]", needed: int, explained: Explained | None) -> Snapshot:
        cache = self._caches[life]
        groups = cache.settings.groups
        wanted: dict[int, Sequence[int]] = {}
        unmade: dict[int, Sequence[int]] = {}
        for entry in explained.missing if explained else ():
            if entry.refusal:
                group = cache.groups[entry.group.index]
                wanted[entry.group.index] = sorted(group.wanted.get(entry.refusal.request, ()))
                unmade[entry.group.index] = sorted(group.unmade.get(entry.refusal.request, ()))
        return Snapshot(
            [cache.stored_below(group, chain, needed) for group in groups],
            [cache.stored_above(group, chain, needed) for group in groups],
            wanted,
            unmade,
        )

    def _store(self, time: int, life: int, row: Mapping[str, Any]) -> None:
        settings = self.settings[life]
        name = (life, row["request_id"])
        prompt = self._prompts.get(name)
        if prompt is None:
            prompt = self._prompts[name] = Prompt(array("Q"), [], 0, UNKNOWN, b"")
        if row["values"]:
            begin = self._book(settings).extend(prompt, settings, row["first"], row["values"])
            self._remember(Prompt(prompt.chain, [], 0, UNKNOWN, prompt.key), name, begin)
        if 0 <= row["group"] < len(settings.groups):
            self._caches[life].store(row, prompt.chain)

    def _seen_of(self, settings: Settings, prompt: Prompt, name: tuple[int, str]) -> tuple[Seen, int | None]:
        same = other = 0
        relative = None
        mix = int.from_bytes(prompt.key, "little") if prompt.key else 0
        for end, identity in marks_of(prompt, settings):
            if end > same and (index := self._seen.find(identity, name)) is not None:
                same, relative = end, self._lookup_of.get(index)
            if self._keyed and end > other and self._plain.find(identity ^ mix, name) is not None:
                other = end
        return Seen(min(same, prompt.tokens), min(max(same, other), prompt.tokens)), relative

    def _remember(self, prompt: Prompt, name: tuple[int, str], begin: int) -> None:
        """Note the prefixes of `prompt` from entry `begin` of its chain on, as those of the latest lookup of `name`."""
        index = self._seen.begin(name)
        self._lookup_of[index] = self._latest_lookup.get(name, len(self.replayed) - 1)
        self._latest_lookup[name] = self._lookup_of[index]
        mix = int.from_bytes(prompt.key, "little") if prompt.key else 0
        known = array("Q", prompt.chain[begin:])
        known.extend(identity for _, identity in prompt.marks)
        if prompt.whole != UNKNOWN:
            known.append(prompt.whole)
        self._seen.add(known, index)
        if self._keyed:
            self._plain.add((identity ^ mix for identity in known), self._plain.begin(name))

    def _coming(self, chain: "array[int]", settings: Settings, after: int, time: int, name: tuple[int, str]) -> int:
        """Return how far producers that were at work at `time` registered `chain` afterwards, in tokens."""
        reached = after
        for producer, progress in self._progress.items():
            if producer == name or progress[-1][0] <= time or self._first_seen.get(producer, time + 1) > time:
                continue
            prompt = self._prompts[producer]
            if _comparable(self.settings[producer[0]], settings):
                shared = common_prefix(chain, prompt.chain) * settings.hash_block
                reached = max([reached, *(last_within(run, shared) for _, runs in progress for run in runs)])
        return reached


def last_within(run: range, limit: int) -> int:
    """Return the last position of an ascending `run` that is at most `limit`; 0: there is none."""
    count = (min(limit, run[-1]) - run.start) // run.step
    return run[count] if count >= 0 else 0


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


def _comparable(one: Settings, other: Settings) -> bool:
    return (one.fingerprint_key_id, one.hash_block, one.lookahead) == (
        other.fingerprint_key_id,
        other.hash_block,
        other.lookahead,
    )
