"""What one life of a replica holds, group by group, as its stores and evictions say; and what became of the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from analyzers.evictions import takers_of
from analyzers.model import State
from analyzers.prompts import UNKNOWN, Chain, identities, mix_of
from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.positions import parse_positions

_Refused = Literal["masked", "not_materialized"]
_REFUSALS: Sequence[_Refused] = ("masked", "not_materialized")


class Refusal(NamedTuple):
    """A boundary whose state a request did not leave: `masked` (computed, refused) or `not_materialized`.

    The chunk that ran over it, or ended there, went from `chunk_start` to `chunk_end` (tokens; None: not known).
    """

    request: str
    state: State
    chunk_start: int | None
    chunk_end: int | None


class Loss(NamedTuple):
    """A key that left the cache: when (ns), by which request's allocation, `allocation`, `replaced` or `reset`.

    `used` is when (ns) a request last stored it or hit it; 0: not known. `taker` is the group that was given the
    block; None: not known.
    """

    time: int
    evictor: str
    reason: str
    used: int = 0
    taker: int | None = None


@dataclass
class GroupResidency:
    """One group: identities held now, ever held, refused, and lost.

    `told` is, by request, what each of its stores said of the mask: the positions that it asked for and that were not
    made, and those that were stored, as text. `stored` counts the keys that were registered, `peak` those held at once
    at the most.
    """

    held: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    lost: dict[int, Loss] = field(default_factory=dict)
    told: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    stored: int = 0
    peak: int = 0

    def unmade(self, request: str) -> set[int]:
        """Return the positions (tokens) that the mask wanted of `request`, and where no state was made."""
        return {position for text, _ in self.told.get(request, ()) for run in parse_positions(text) for position in run}

    def wanted(self, request: str) -> set[int]:
        """Return the positions (tokens) that the mask wanted of `request`."""
        stored = (run for _, text in self.told.get(request, ()) for run in parse_positions(text))
        return self.unmade(request).union(*stored)


class Residency:
    """The cache of one life, replayed event by event.

    Attributes:
        groups: by index.
        computed: identities of what was computed here, where there are no dense groups.
        over: another life of the replica has begun.
        peak: keys held per group when all together held most.
        moments: (time in ns, keys held per group) at each lookup.
        everywhere: identities that a dense group had, or that were computed where there is none; shared with others.

    """

    def __init__(self, settings: Settings, replica: str = "") -> None:
        self.settings = settings
        self.replica = replica
        self.groups = [GroupResidency() for _ in settings.groups]
        self.computed: set[int] = set()
        self.over = False
        self.peak = [0 for _ in settings.groups]
        self.moments: list[tuple[int, tuple[int, ...]]] = []
        self.everywhere: set[int] = set()
        self._used: dict[int, int] = {}
        self._dense = [group.dense for group in settings.groups]
        self._held = 0
        self._most = 0

    def store(self, row: Mapping[str, Any], chain: Chain) -> None:
        """Apply a row of `Capture.stores`."""
        number, text = row["group"], row["stored"]
        group = self.groups[number]
        stored = self._named(text, chain) if text else ()
        if stored:
            before = len(group.held)
            group.held.update(stored)
            group.ever.update(stored)
            self._used.update(dict.fromkeys(stored, row["start"]))
            group.stored += len(stored)
            held = len(group.held)
            if held > before:
                self._held += held - before
                if held > group.peak:
                    group.peak = held
                if self._held > self._most:
                    self._most = self._held
                    self.peak = [len(each.held) for each in self.groups]
            _forget(group.refused, stored)
            _forget(group.lost, stored)
        if self._dense[number]:
            self.everywhere.update(stored)
            return
        for state in _REFUSALS:
            if row[state]:
                self._refuse(group, self._named(row[state], chain), row, state)
        if text or row["wanted"]:
            group.told.setdefault(row["request_id"], []).append((row["wanted"], text))
        if not self.settings.dense_groups:
            for column in ("stored", *_REFUSALS):
                computed = self._named(row[column], chain)
                self.computed.update(computed)
                self.everywhere.update(computed)

    def evict(self, row: Mapping[str, Any]) -> None:
        """Apply a row of `Capture.evicts`."""
        if row["reset"]:
            self.end(Loss(row["start"], "", "reset"))
            return
        if not 0 <= row["group"] < len(self.groups):
            return
        group = self.groups[row["group"]]
        time, evictor, reason = row["start"], row["evictor_request_id"] or "", row["reason"] or "allocation"
        gone = identities(row["fingerprints"], b"")
        if keys := row["keys"]:
            width = FINGERPRINT_BYTES
            gone = [each ^ mix_of(keys[width * i : width * (i + 1)]) for i, each in enumerate(gone)]
        takers = takers_of(row["evictor_groups"], len(gone))
        before = len(group.held)
        group.held.difference_update(gone[: len(takers)])
        self._held += len(group.held) - before
        ever, lost, used = group.ever, group.lost, self._used
        for identity, taker in zip(gone, takers, strict=False):
            if identity in ever:
                lost[identity] = Loss(time, evictor, reason, used.get(identity, 0), taker)

    def look(self, time: int) -> None:
        """Note how much is held at `time` (ns)."""
        self.moments.append((time, tuple(len(group.held) for group in self.groups)))

    def use(self, chain: Chain, tokens: int, time: int) -> None:
        """Note that a request hit the first `tokens` of `chain` at `time` (ns)."""
        self._used.update(dict.fromkeys(chain[: tokens // self.settings.hash_block], time))

    def end(self, loss: Loss) -> None:
        """Drop everything: the cache was cleared, or this life is over."""
        for group in self.groups:
            for identity in group.held:
                group.lost[identity] = Loss(loss.time, loss.evictor, loss.reason, self._used.get(identity, 0))
            group.held.clear()
        self._held = 0

    def finish(self, loss: Loss) -> None:
        """Drop everything for good: this life is over, and nobody asks any more what it refused."""
        self.end(loss)
        self.over = True
        self._used.clear()
        for group in self.groups:
            group.refused.clear()
            group.told.clear()

    def _refuse(self, group: GroupResidency, named: Sequence[int], row: Mapping[str, Any], state: _Refused) -> None:
        known, absent = group.refused, set(named).difference(group.held)
        if state != "masked" and not known.keys().isdisjoint(absent):
            # A state that was computed once and refused says more than one that another request never made.
            absent = {each for each in absent if not (each in known and known[each].state == "masked")}
        known.update(dict.fromkeys(absent, Refusal(row["request_id"], state, row["chunk_start"], row["chunk_end"])))

    def _named(self, text: str, chain: Chain) -> list[int]:
        """Return the identities of the positions in `text` that are named, in their order."""
        if not text:
            return []
        slices = _slices(text, self.settings.hash_block)
        found = chain[slices[0]] if len(slices) == 1 else [each for one in slices for each in chain[one]]
        return [identity for identity in found if identity != UNKNOWN] if UNKNOWN in found else found


@lru_cache(maxsize=1 << 14)
def _slices(text: str, unit: int) -> tuple[slice, ...]:
    """Return where a chain with an entry every `unit` tokens has the positions in `text` that are on its grid."""
    found = []
    for run in parse_positions(text):
        if run.step % unit and len(run) > 1:
            indexes = (position // unit - 1 for position in run if position % unit == 0)
            found += [slice(index, index + 1) for index in indexes if index >= 0]
        elif run.start % unit == 0:
            # All or none of the run are on the grid; the first may be 0, which names nothing.
            step = max(run.step // unit, 1)
            first = run.start // unit - 1
            found.append(slice(first if first >= 0 else first + step, run[-1] // unit, step))
    return tuple(found)


def _forget(known: dict[int, Any], identities: Sequence[int]) -> None:
    if known and not known.keys().isdisjoint(identities):
        for identity in identities:
            known.pop(identity, None)
