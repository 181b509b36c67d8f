"""Replays a capture event by event, all replicas in time, and explains every lookup at its moment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analyzers import model
from analyzers.events import Event, Evicted, Holes, LookupRow, Stored, events_of, successors, timeline
from analyzers.finders import agree
from analyzers.fleet_views import Caches, FleetViews
from analyzers.ladder import Explained, Scene, Seen, explain
from analyzers.producers import Producers
from analyzers.prompts import UNKNOWN, Prompt, PromptBook, contains, last_mark, marks_of, mix_of, plain_marks
from analyzers.residency import Residency
from analyzers.seen import SeenPrefixes
from analyzers.settings import Settings, read_settings
from analyzers.views import View

_KEPT = (
    "life", "start", "span_id", "request_id", "prompt_tokens", "hit_tokens", "admitted", "admitted_tokens", "attempts",
    "skipped", "discarded_tokens", "external_tokens", "lora", "salt", "items",
)  # fmt: skip
"""The columns of a lookup that are of use after it."""

Name = tuple[int, str]
"""A request: the life that it was sent to, and its id there."""


class Elsewhere(NamedTuple):
    """What other replicas would have given a lookup at its moment, in tokens.

    Attributes:
        best: the longest hit on any replica, this one included.
        replicas: those that would have given it, by name.
        previous_turn: hit on the replica that had the previous turn of the conversation; None: there was none.

    """

    best: int
    replicas: Sequence[str]
    previous_turn: int | None


class Replayed(NamedTuple):
    """One lookup with its explanation.

    Attributes:
        row: its row in `Capture.lookups`, without the fingerprints.
        prompt: its tokens.
        explained: its ladder; None where the evidence has holes and nothing can be said.
        relative: index (into the replayed lookups) of the latest earlier lookup that shares the longest prefix.
        shared: tokens of that prefix.
        other_key: index of a lookup that shares the longest prefix under whatever key.
        holds_producer: whether its prompt contains all that is named of the one whose request refused the boundary.
        elsewhere: what other replicas would have given it; None where nothing can be said.

    """

    row: Mapping[str, Any]
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


class Replay:
    """The state of a replay: a cache per life, and what requests have been seen; `settings` are by life."""

    def __init__(self, capture: model.Capture) -> None:
        self._capture = capture
        self.settings = [read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives]
        self.caches = [
            Residency(settings, life.replica) for settings, life in zip(self.settings, capture.lives, strict=True)
        ]
        self._kinds = [_kind(settings) for settings in self.settings]
        self._books: dict[tuple[str, int, int], PromptBook] = {}
        self._seen = SeenPrefixes()
        self._plain = SeenPrefixes()
        self._same_key, self._same_lora, self._same_salt = SeenPrefixes(), SeenPrefixes(), SeenPrefixes()
        # Replicas whose fingerprints do not compare meet on the common grid; each kind remembers its own.
        self._seen_by: dict[tuple[str, int, int], SeenPrefixes] = {}
        self._mixed = len(set(self._kinds)) > 1
        self._caches: dict[tuple[str, int, int], Caches] = {}
        self._lookup_of: list[int] = []
        self._latest_lookup: dict[Name, int] = {}
        self._keyed = any(row for column in ("key", "plain") for row in capture.lookups[column].to_list())
        self._to_come: Counter[Name] = Counter(capture.lookups.select("life", "request_id").rows())
        self._prompts: dict[Name, Prompt] = {}
        self.replayed: list[Replayed] = []

    def run(self) -> list[Replayed]:
        """Replay everything; return the lookups in order."""
        line = timeline(self._capture)
        self.holes = self._holes = Holes(self._capture, line.order)
        self._producers = Producers(line, self.settings)
        ends = successors(self._capture, line.order)
        for event in events_of(line, self._capture):
            if event.life in ends:
                self._begin(event.life, ends.pop(event.life), event.time)
            if self._holes.any:
                self._holes.pass_by(event)
            row = event.row
            if isinstance(row, Stored):
                self._store(event.life, row)
            elif isinstance(row, Evicted):
                self.caches[event.life].evict(row)
            else:
                self._lookup(event, row)
        return self.replayed

    def _begin(self, life: int, over: Sequence[int], time: int) -> None:
        """Begin a life at `time` (ns): of the same replica the lives `over` are no more."""
        for other in over:
            if not self.caches[other].over:
                self._caches[self._kinds[other]].end(self.caches[other], time)
        self._caches.setdefault(self._kinds[life], Caches()).begin(self.caches[life])

    def _lookup(self, event: Event, row: LookupRow) -> None:
        life = event.life
        settings = self.settings[life]
        prompt = self._book(life).read(settings, row)
        name = (life, row["request_id"])
        self._producers.begin(name, event.time)
        self._to_come[name] -= 1
        seen, relative, other_key = self._seen_of(settings, prompt, row, name)
        view = View(self.caches[life], prompt.chain, prompt.tokens)
        explained, elsewhere = None, None
        named = prompt.whole != UNKNOWN and UNKNOWN not in prompt.chain
        if named and settings.predictable and not self._holes.by_now(life) and settings.prefix_caching:
            fleet = self._fleet(life, prompt, name, view, relative)
            explained = explain(prompt, self._scene(event, row, prompt, name, seen, view, fleet))
            turn = self._previous_turn(prompt, relative, seen.same_key)
            elsewhere = self._elsewhere(row, fleet, turn, life)
        self._append(life, row, prompt, explained, (relative, seen.same_key, other_key), elsewhere, view)
        self.caches[life].look(event.time)
        if row["admitted"]:
            self.caches[life].use(prompt.chain, row["hit_tokens"], event.time)
        self._prompts[name] = prompt
        self._latest_lookup[name] = len(self.replayed) - 1
        self._remember(prompt, name, 0, row)
        prompt.forget_common()

    def _scene(
        self, event: Event, row: LookupRow, prompt: Prompt, name: Name, seen: Seen, view: View, fleet: FleetViews
    ) -> Scene:
        life, holes = event.life, self._holes
        others: Sequence[int] = ()
        if holes.any:
            others = [other for other, kind in enumerate(self._kinds) if kind[0] == self._kinds[life][0]]
        return Scene(
            limit=row["max_hit_tokens"],
            seen=seen,
            here=view,
            fleet=fleet,
            coming=lambda after: self._producers.coming(
                prompt.chain, self._comparable(life), after, event.time, name, self._prompts
            ),
            completed=row["connector"],
            holes_elsewhere=holes.thinned or any(holes.by_now(other) for other in others if other != life),
            holes_later=holes.thinned or any(holes.ever(other) for other in others),
        )

    def _append(
        self,
        life: int,
        row: LookupRow,
        prompt: Prompt,
        explained: Explained | None,
        known: tuple[int | None, int, int | None],
        elsewhere: Elsewhere | None,
        view: View,
    ) -> None:
        relative, shared, other_key = known
        snapshot = _snapshot(view, explained.needed if explained else row["hit_tokens"], explained)
        producer = next((e.refusal.request for e in explained.missing if e.refusal), None) if explained else None
        whole, tokens = False, 0
        if producer is not None:
            whole = contains(prompt, self._prompts[life, producer])
            tokens = self._prompts[life, producer].tokens
        kept = {column: row[column] for column in _KEPT}
        self.replayed.append(
            Replayed(
                kept, self.settings[life], prompt, snapshot, explained, relative, shared, other_key, whole, tokens,
                elsewhere,
            )
        )  # fmt: skip

    def _store(self, life: int, row: Stored) -> None:
        name = (life, row.request)
        prompt = self._prompts.get(name)
        if prompt is None:
            prompt = self._prompts[name] = Prompt([])
        if row.values and row.first is not None:
            begin = self._book(life).extend(prompt, self.settings[life], row.first, row.values)
            self._remember(prompt, name, begin)
        self.caches[life].store(row, prompt.chain)

    def _seen_of(
        self, settings: Settings, prompt: Prompt, row: Mapping[str, Any], name: Name
    ) -> tuple[Seen, int | None, int | None]:
        same, relative = self._longest(self._seen, prompt, settings, name, 0)
        if not self._keyed:
            same = min(same, prompt.tokens)
            return Seen(same, same), relative, None
        plain, mix = plain_marks(row), prompt.mix
        other, other_key = self._longest(self._plain, prompt, settings, name, mix)
        last = self._plain.find_last([identity for _, identity in plain], name)
        if last is not None and plain[last[0]][0] > other:
            other, other_key = plain[last[0]][0], self._lookup_of[last[1]]
        if other > same:
            tokens = plain or [(end, identity ^ mix) for end, identity in marks_of(prompt, settings)]
            other_key = self._nearest_key(prompt, name, [mark for mark in tokens if mark[0] >= other], other_key)
        return Seen(min(same, prompt.tokens), min(max(same, other), prompt.tokens)), relative, other_key

    def _longest(
        self, seen: SeenPrefixes, prompt: Prompt, settings: Settings, name: Name, mix: int
    ) -> tuple[int, int | None]:
        """Return how many tokens of `prompt` another had, as far as `seen` knows, and that one's lookup."""
        end, index = 0, None
        if (last := seen.find_last(prompt.chain, name, mix)) is not None:
            end, index = (last[0] + 1) * settings.hash_block + settings.lookahead, last[1]
        if (last := seen.find_last(prompt.common, name, mix)) is not None:
            mark = prompt.ends[last[0]]
            if mark > end:
                end, index = mark, last[1]
        if prompt.whole != UNKNOWN and prompt.tokens > end:
            whole = seen.find(prompt.whole ^ mix, name)
            if whole is not None:
                end, index = prompt.tokens, whole
        return end, None if index is None else self._lookup_of[index]

    def _nearest_key(
        self, prompt: Prompt, name: Name, tokens: Sequence[tuple[int, int]], found: int | None
    ) -> int | None:
        """Return a lookup that had the `tokens` under the same key but for its items, adapter or salt; else `found`."""
        for seen, key in (
            (self._seen, prompt.key),
            (self._same_key, prompt.key),
            (self._same_lora, prompt.lora),
            (self._same_salt, prompt.salt),
        ):
            for _, identity in tokens:
                if (index := seen.find(identity ^ mix_of(key), name)) is not None:
                    return self._lookup_of[index]
        return found

    def _remember(self, prompt: Prompt, name: Name, begin: int, row: Mapping[str, Any] | None = None) -> None:
        """Note the prefixes of `prompt` as those of the latest lookup of `name`: those of `row`, its lookup, or, of a
        store, those from entry `begin` of its chain on.
        """
        index, again = self._seen.begin(name), self._to_come[name] > 0
        self._latest_lookup.setdefault(name, len(self.replayed) - 1)
        self._lookup_of.append(self._latest_lookup[name])
        known = prompt.chain[begin:]
        if row is not None:
            known += prompt.common
            if prompt.whole != UNKNOWN:
                known.append(prompt.whole)
        self._seen.add(known, index, again)
        if self._keyed:
            for seen in (self._plain, self._same_key, self._same_lora, self._same_salt):
                seen.begin(name)
            tokens = [identity ^ prompt.mix for identity in known]
            items = [identity for _, identity in plain_marks(row)] if row is not None else []
            self._plain.add((*tokens, *items), index, again)
            self._same_key.add((identity ^ prompt.mix for identity in items), index, again)
            for seen, key in ((self._same_lora, prompt.lora), (self._same_salt, prompt.salt)):
                seen.add((identity ^ mix_of(key) for identity in (*tokens, *items)), index, again)
        if self._mixed and row is not None:
            seen = self._seen_by.setdefault(self._kinds[name[0]], SeenPrefixes(self._seen))
            seen.add(prompt.common, index, again)

    def _comparable(self, life: int) -> frozenset[int]:
        return frozenset(other for other, kind in enumerate(self._kinds) if kind == self._kinds[life])

    def _fleet(self, life: int, prompt: Prompt, name: Name, here: View, relative: int | None) -> FleetViews:
        """Return the prompt against every cache that could hold it."""
        own = self._kinds[life]
        first = None
        if relative is not None and self._kinds[other := self.replayed[relative].row["life"]] == own:
            first = self.caches[other]
        others = []
        for kind, seen in self._seen_by.items() if self._mixed else ():
            if kind != own and kind[0] == own[0]:
                shared, index = 0, None
                for end, identity in zip(prompt.ends, prompt.common, strict=True):
                    if (found := seen.find(identity, name)) is not None:
                        shared, index = end, found
                if index is not None:
                    other_life, other_request = seen.owner(index)
                    others.append(View(self.caches[other_life], self._prompts[other_life, other_request].chain, shared))
        return FleetViews(self._caches[own], here, others, first)

    def _previous_turn(self, prompt: Prompt, relative: int | None, shared: int) -> int | None:
        """Return the life that had the prompt which this one goes on from; None where it goes on from none."""
        if relative is None:
            return None
        before = self.replayed[relative]
        longer = prompt.tokens > before.prompt.tokens and shared >= last_mark(before.prompt, before.settings)
        return int(before.row["life"]) if longer else None

    def _elsewhere(self, row: Mapping[str, Any], fleet: FleetViews, turn: int | None, life: int) -> Elsewhere | None:
        """Return what the other replicas would have given; None where there are none."""
        if len(self.caches) == 1:
            return None
        limit, best = row["max_hit_tokens"], row["hit_tokens"]
        names = [self._capture.lives[life].replica]
        previous = row["hit_tokens"] if turn == life else None if turn is None else 0
        for view in fleet.living:
            residency = view.residency
            if residency is self.caches[life] or residency.over or not view.prefix(limit):
                continue
            hit = hit_on(view, limit)
            if turn is not None and residency is self.caches[turn]:
                previous = hit
            if hit > best:
                best, names = hit, [residency.replica]
            elif hit == best:
                names.append(residency.replica)
        return Elsewhere(best, sorted(names), previous)

    def _book(self, life: int) -> PromptBook:
        return self._books.setdefault(self._kinds[life], PromptBook())


def hit_on(view: View, limit: int) -> int:
    """Return the hit that the replica of `view` would give the prompt, in tokens."""
    settings = view.residency.settings
    top = min(limit, view.shared)
    return min(top, agree(settings, view.positions, top, len(view.chain) * settings.hash_block))


_NOTHING: dict[int, Sequence[int]] = {}


def _snapshot(view: View, needed: int, explained: Explained | None) -> Snapshot:
    cache, groups = view.residency, view.residency.settings.groups
    missing = explained.missing if explained else ()
    wanted: dict[int, Sequence[int]] = {} if missing else _NOTHING
    unmade: dict[int, Sequence[int]] = {} if missing else _NOTHING
    for entry in missing:
        if entry.refusal:
            group, request = entry.group.index, entry.refusal.request
            wanted[group] = sorted(cache.wanted(group, request))
            unmade[group] = sorted(cache.unmade(group, request))
    return Snapshot(
        [view.stored_below(group, needed) for group in groups],
        [view.stored_above(group, needed) for group in groups],
        wanted,
        unmade,
    )


def _kind(settings: Settings) -> tuple[str, int, int]:
    """Return what two replicas must have in common for their fingerprints to compare."""
    return (settings.fingerprint_key_id, settings.hash_block, settings.lookahead)
