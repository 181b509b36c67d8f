"""Replays a capture event by event, all replicas in time, and explains every lookup at its moment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from analyzers import model
from analyzers.events import (
    EVICT,
    STORE,
    Holes,
    Stored,
    evicted_of,
    happenings,
    stored_of,
    successors,
    timeline,
)
from analyzers.finders import agree
from analyzers.fleet_views import Caches, FleetViews
from analyzers.ladder import Coming, Explained, Lacking, Scene, begin, explain, nothing_left
from analyzers.lookups import Looked, Lookup, lookups_of
from analyzers.missing import Missing
from analyzers.producers import Producers
from analyzers.prompts import UNKNOWN, Kind, Prompt, contains, kind_of, last_mark
from analyzers.residency import Residency
from analyzers.seen import Name
from analyzers.settings import Settings, read_settings
from analyzers.views import View, no_neighbours


class Elsewhere(NamedTuple):
    """What other replicas would have given a lookup at its moment, in tokens.

    Attributes:
        best: the longest hit on any replica, this one included.
        replicas: those that would have given it, by name; this one where none would have given any.
        previous_turn: hit on the replica that had the previous turn of the conversation; None: there was none.

    """

    best: int
    replicas: Sequence[str]
    previous_turn: int | None


class Replayed(NamedTuple):
    """One lookup with its explanation.

    Attributes:
        row: what is of use of its row in `Capture.lookups`.
        prompt: its tokens.
        explained: its ladder; None where the evidence has holes and nothing can be said.
        relative: index (into the replayed lookups) of the latest earlier lookup that shares the longest prefix.
        shared: tokens of that prefix.
        other_key: index of a lookup that shares the longest prefix under whatever key.
        holds_producer: whether its prompt contains all that is named of the one whose request refused the boundary.
        elsewhere: what other replicas would have given it; None where nothing can be said.

    """

    row: Looked
    settings: Settings
    prompt: Prompt
    residency: "Snapshot"
    explained: Explained | None
    relative: int | None
    shared: int
    other_key: int | None
    holds_producer: bool
    producer_tokens: int
    elsewhere: Elsewhere | None


class Snapshot(NamedTuple):
    """Per group: deepest state at or below the needed boundary, nearest one above (None: none), in tokens.

    For the groups that lack one: what the mask wanted of the request that computed the boundary, and what of that
    was never made.
    """

    below: Sequence[int | None]
    above: Sequence[int | None]
    wanted: Mapping[int, Sequence[int]]
    unmade: Mapping[int, Sequence[int]]


# What `_make` does, without a frame of the interpreter for each.
_make_elsewhere = partial(tuple.__new__, Elsewhere)
_make_replayed = partial(tuple.__new__, Replayed)
_make_snapshot = partial(tuple.__new__, Snapshot)
_make_scene = partial(tuple.__new__, Scene)


class Replay:
    """The state of a replay: a cache per life, and what requests have been seen; `settings` are by life."""

    def __init__(self, capture: model.Capture) -> None:
        self._given = [capture]
        self.settings = [read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives]
        self.caches = [
            Residency(settings, life.replica) for settings, life in zip(self.settings, capture.lives, strict=True)
        ]
        self._kinds = [kind_of(settings) for settings in self.settings]
        self._caches: dict[Kind, Caches] = {}
        self._prompts: dict[Name, Prompt] = {}
        self.replayed: list[Replayed] = []

    def run(self) -> list[Replayed]:
        """Replay everything, once; return the lookups in order. What nobody else holds of the capture is dropped."""
        capture = self._given.pop()
        line = timeline(capture)
        # The timeline has all that is needed of the stores.
        capture = replace(capture, stores=capture.stores.clear())
        self.holes = self._holes = Holes(capture, line.order)
        ends = successors(capture, line.order)
        evicts, frames = capture.evicts, [capture.lookups]
        del capture
        self._producers = Producers(line, self.settings)
        lookups = lookups_of(line, frames, self.settings)
        rows: tuple[Iterator[Any], ...] = (lookups, stored_of(line), evicted_of(line, evicts))
        following = tuple(each.__next__ for each in rows)
        holes = self._holes
        columns = ("sequence", "missing") if holes.any else ()
        for time, life, kind, *lacking in happenings(line, "time", "life", "kind", *columns):
            if life in ends:
                self._begin(life, ends.pop(life), time)
            if lacking:
                holes.pass_by(life, *lacking)
            row = following[kind]()
            if kind == STORE:
                self._store(life, row)
            elif kind == EVICT:
                self.caches[life].evict(row)
            else:
                self._lookup(life, time, row)
        for cache in self.caches:
            cache.settle()
        return self.replayed

    def _begin(self, life: int, over: Sequence[int], time: int) -> None:
        """Begin a life at `time` (ns): of the same replica the lives `over` are no more."""
        for other in over:
            if not self.caches[other].over:
                self._caches[self._kinds[other]].end(self.caches[other], time)
        self._caches.setdefault(self._kinds[life], Caches()).begin(self.caches[life])

    def _lookup(self, life: int, time: int, lookup: Lookup) -> None:
        settings, cache = self.settings[life], self.caches[life]
        row, prompt, before = lookup.row, lookup.prompt, lookup.before
        name = (life, row.request_id)
        self._producers.begin(name, time)
        view: View | None = None
        explained, elsewhere = None, None
        named = prompt.whole != UNKNOWN and UNKNOWN not in prompt.chain
        if named and settings.predictable and not self._holes.by_now(life) and settings.prefix_caching:
            walk, lacking = begin(prompt.tokens, before, lookup.limit, settings), self._lacking(life)
            if not walk.at and self._is_new(lookup, name):
                explained = nothing_left(walk, before.same_key, lacking)
                elsewhere = self._elsewhere(lookup, None, life)
            else:
                view = View(cache, prompt.chain, prompt.tokens)
                fleet = self._fleet(life, lookup, view)
                if walk.at:
                    explained = explain(walk, prompt, self._scene(life, time, lookup, name, view, fleet, lacking))
                else:
                    explained = nothing_left(walk, before.same_key, lacking)
                elsewhere = self._elsewhere(lookup, fleet, life)
        else:
            view = View(cache, prompt.chain, prompt.tokens)
        self._append(life, lookup, explained, elsewhere, view)
        cache.look(time)
        if row.admitted:
            cache.use(prompt.chain, row.hit_tokens, time)
        self._prompts[name] = prompt

    def _is_new(self, lookup: Lookup, name: Name) -> bool:
        """Whether no block of a prompt can be in any cache: nobody has named one, `name` itself included."""
        settings, before = self.settings[name[0]], lookup.before
        first = min(settings.hash_block + settings.lookahead, lookup.prompt.tokens)
        return before.same_key < first and not before.elsewhere and name not in self._prompts

    def _lacking(self, life: int) -> Lacking:
        holes = self._holes
        if not holes.any:
            return _LACKING if holes.thinned else _WHOLE
        others = [other for other, kind in enumerate(self._kinds) if kind[0] == self._kinds[life][0]]
        elsewhere = holes.thinned or any(holes.by_now(other) for other in others if other != life)
        return Lacking(elsewhere, holes.thinned or any(holes.ever(other) for other in others))

    def _scene(
        self, life: int, time: int, lookup: Lookup, name: Name, view: View, fleet: FleetViews, lacking: Lacking
    ) -> Scene:
        def coming(after: int) -> Coming:
            return self._producers.coming(lookup.prompt.chain, self._comparable(life), after, time, name, self._prompts)

        return _make_scene((lookup.limit, lookup.before.same_key, view, fleet, coming, lookup.connector, lacking))

    def _append(
        self, life: int, lookup: Lookup, explained: Explained | None, elsewhere: Elsewhere | None, view: View | None
    ) -> None:
        """Keep a lookup with its explanation; `view`: None where no cache has anything of its prompt."""
        row, prompt, before = lookup.row, lookup.prompt, lookup.before
        missing = explained.missing if explained else ()
        if view is None:
            snapshot = Snapshot(*no_neighbours(len(self.settings[life].groups)), _NOTHING, _NOTHING)
        else:
            snapshot = _snapshot(view, explained.needed if explained else row.hit_tokens, missing)
        producer = next((entry.refusal.request for entry in missing if entry.refusal), None) if missing else None
        whole, tokens = False, 0
        if producer is not None:
            whole = contains(prompt, self._prompts[life, producer])
            tokens = self._prompts[life, producer].tokens
        self.replayed.append(
            _make_replayed((
                row, self.settings[life], prompt, snapshot, explained, before.relative, before.same_key,
                before.other_key, whole, tokens, elsewhere,
            ))
        )  # fmt: skip

    def _store(self, life: int, row: Stored) -> None:
        name = (life, row.request)
        prompt = self._prompts.get(name)
        if prompt is None:
            prompt = self._prompts[name] = Prompt([])
        if row.values and row.first is not None:
            prompt.extend(self.settings[life], row.first, row.values)
        self.caches[life].store(row, prompt.chain)

    def _comparable(self, life: int) -> frozenset[int]:
        return frozenset(other for other, kind in enumerate(self._kinds) if kind == self._kinds[life])

    def _fleet(self, life: int, lookup: Lookup, here: View) -> FleetViews:
        """Return the prompt against every cache that could hold it."""
        own = self._kinds[life]
        relative, first = lookup.before.relative, None
        if relative is not None and self._kinds[other := self.replayed[relative].row.life] == own:
            first = self.caches[other]
        others: Sequence[View] = ()
        if elsewhere := lookup.before.elsewhere:
            others = [View(self.caches[name[0]], self._prompts[name].chain, shared) for name, shared in elsewhere]
        return FleetViews(self._caches[own], here, others, first)

    def _previous_turn(self, prompt: Prompt, relative: int | None, shared: int) -> int | None:
        """Return the life that had the prompt which this one goes on from; None where it goes on from none."""
        if relative is None:
            return None
        before = self.replayed[relative]
        longer = prompt.tokens > before.prompt.tokens and shared >= last_mark(before.prompt, before.settings)
        return int(before.row.life) if longer else None

    def _elsewhere(self, lookup: Lookup, fleet: FleetViews | None, life: int) -> Elsewhere | None:
        """Return what the other replicas would have given; None where there are none.

        `fleet`: None where no cache has anything of the prompt.
        """
        if len(self.caches) == 1:
            return None
        own, here = lookup.row.hit_tokens, self.caches[life]
        turn = self._previous_turn(lookup.prompt, lookup.before.relative, lookup.before.same_key)
        previous = own if turn == life else None if turn is None else 0
        best, names = own, [here.replica]
        limit = lookup.limit
        for view in fleet.holding if fleet and fleet.most(limit) > 0 else ():
            residency = view.residency
            if residency is here or residency.over:
                continue
            before, most = turn is not None and residency is self.caches[turn], view.most(limit)
            if (most < best or most <= 0) and not before:
                continue
            hit = hit_on(view, limit) if most > 0 else 0
            if before:
                previous = hit
            if hit > best:
                best, names = hit, [residency.replica]
            elif hit == best > 0:
                names.append(residency.replica)
        return _make_elsewhere((best, sorted(names) if len(names) > 1 else names, previous))


def hit_on(view: View, limit: int) -> int:
    """Return the hit that the replica of `view` would give the prompt, in tokens."""
    settings = view.residency.settings
    top = min(limit, view.shared)
    return min(top, agree(settings, view.positions, top, len(view.chain) * settings.hash_block))


def _snapshot(view: View, needed: int, missing: Sequence[Missing]) -> Snapshot:
    cache = view.residency
    below, above = view.neighbours(needed)
    if not missing:
        return _make_snapshot((below, above, _NOTHING, _NOTHING))
    wanted: dict[int, Sequence[int]] = {}
    unmade: dict[int, Sequence[int]] = {}
    for entry in missing:
        if entry.refusal:
            group, request = entry.group.index, entry.refusal.request
            wanted[group] = sorted(cache.wanted(group, request))
            unmade[group] = sorted(cache.unmade(group, request))
    return Snapshot(below, above, wanted, unmade)


_NOTHING: Mapping[int, Sequence[int]] = {}
_WHOLE = Lacking(elsewhere=False, later=False)
_LACKING = Lacking(elsewhere=True, later=True)
