"""What one life of a replica holds, group by group, as its stores and evictions say; and what became of the rest."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from analyzers.evictions import takers_of
from analyzers.finders import find
from analyzers.model import State
from analyzers.prompts import UNKNOWN, identities
from analyzers.settings import Group, Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.positions import parse_positions

_REFUSALS: Sequence[Literal["masked", "not_materialized"]] = ("masked", "not_materialized")


@dataclass(frozen=True)
class Refusal:
    """A boundary whose state a request did not leave: `masked` (computed, refused) or `not_materialized`.

    The chunk that ran over it, or ended there, went from `chunk_start` to `chunk_end` (tokens; None: not known).
    """

    request: str
    state: State
    chunk_start: int | None
    chunk_end: int | None


@dataclass(frozen=True)
class Loss:
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

    `wanted` are the positions (tokens) that the mask asked for, by request; `unmade` those where no state was made.
    `stored` counts the keys that were registered, `peak` those held at once at the most.
    """

    held: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    lost: dict[int, Loss] = field(default_factory=dict)
    wanted: dict[str, set[int]] = field(default_factory=dict)
    unmade: dict[str, set[int]] = field(default_factory=dict)
    stored: int = 0
    peak: int = 0


class Residency:
    """The cache of one life, replayed event by event.

    Attributes:
        groups: by index.
        computed: identities of what was computed here, where there are no dense groups.
        over: another life of the replica has begun.
        peak: keys held per group when all together held most.
        moments: (time in ns, keys held per group) at each lookup.

    """

    def __init__(self, settings: Settings, replica: str = "") -> None:
        self.settings = settings
        self.replica = replica
        self.groups = [GroupResidency() for _ in settings.groups]
        self.computed: set[int] = set()
        self.over = False
        self.peak = [0 for _ in settings.groups]
        self.moments: list[tuple[int, tuple[int, ...]]] = []
        self._used: dict[int, int] = {}

    def store(self, row: Mapping[str, Any], chain: "array[int]") -> None:
        """Apply a row of `Capture.stores`."""
        group = self.groups[row["group"]]
        request = row["request_id"]
        stored = self._named(row["stored"], chain)
        if stored:
            group.held.update(stored)
            group.ever.update(stored)
            self._used.update(dict.fromkeys(stored, row["start"]))
            group.stored += len(stored)
            group.peak = max(group.peak, len(group.held))
            occupied = [len(each.held) for each in self.groups]
            if sum(occupied) > sum(self.peak):
                self.peak = occupied
            for known in (group.refused, group.lost):
                for identity in stored if known else ():
                    known.pop(identity, None)
        if not self.settings.groups[row["group"]].dense:
            self._refuse(row, chain, group)
            unmade = [position for run in parse_positions(row["wanted"]) for position in run]
            made = [position for run in parse_positions(row["stored"]) for position in run]
            group.unmade.setdefault(request, set()).update(unmade)
            group.wanted.setdefault(request, set()).update(unmade, made)
        if not self.settings.dense_groups:
            for column in ("stored", "masked", "not_materialized"):
                self.computed.update(self._named(row[column], chain))

    def evict(self, row: Mapping[str, Any]) -> None:
        """Apply a row of `Capture.evicts`."""
        if row["reset"]:
            self.end(Loss(row["start"], "", "reset"))
            return
        if not 0 <= row["group"] < len(self.groups):
            return
        group = self.groups[row["group"]]
        cause = (row["start"], row["evictor_request_id"] or "", row["reason"] or "allocation")
        values, keys = row["fingerprints"], row["keys"]
        takers = takers_of(row["evictor_groups"], len(values) // FINGERPRINT_BYTES)
        for index, taker in enumerate(takers):
            start, end = index * FINGERPRINT_BYTES, (index + 1) * FINGERPRINT_BYTES
            identity = identities(values[start:end], keys[start:end])[0]
            group.held.discard(identity)
            if identity in group.ever:
                group.lost[identity] = Loss(*cause, self._used.get(identity, 0), taker)

    def look(self, time: int) -> None:
        """Note how much is held at `time` (ns)."""
        self.moments.append((time, tuple(len(group.held) for group in self.groups)))

    def use(self, chain: "array[int]", tokens: int, time: int) -> None:
        """Note that a request hit the first `tokens` of `chain` at `time` (ns)."""
        self._used.update(dict.fromkeys(chain[: tokens // self.settings.hash_block], time))

    def end(self, loss: Loss) -> None:
        """Drop everything: the cache was cleared, or this life is over."""
        for group in self.groups:
            for identity in group.held:
                group.lost[identity] = Loss(loss.time, loss.evictor, loss.reason, self._used.get(identity, 0))
            group.held.clear()

    def dense_prefix(self, chain: "array[int]", limit: int, ever: bool = False) -> int:
        """Return how much of `chain` all dense groups hold without a gap (or ever held), at most `limit` tokens.

        Without dense groups: how much of it was computed here.
        """
        if not self.settings.dense_groups:
            return self._longest(lambda identity: identity in self.computed, chain, limit)
        return min([limit, *(self._dense(group, chain, limit, ever) for group in self.settings.dense_groups)])

    def _dense(self, group: Group, chain: "array[int]", limit: int, ever: bool) -> int:
        # A block that is held beyond `limit` holds the tokens before it too, so it is looked at as well.
        unit, block = self.settings.hash_block, group.block_size
        step = block // unit
        residency = self.groups[group.index]
        members = residency.ever if ever else residency.held
        last = min(len(chain), -(-limit // block) * step)
        blocks = 0
        for index in range(step - 1, last, step):
            if chain[index] not in members:
                break
            blocks += 1
        length = blocks * block
        if self.settings.alignment < block and length < limit:
            whole = len(chain) * unit
            length = find(group, self._test(group, chain, ever), whole, False, self.settings.alignment).matched
        return length

    def holds(self, group: Group, chain: "array[int]", position: int) -> bool:
        """Whether `group` has a key for the prefix of `chain` that ends at `position`."""
        return self._test(group, chain, False)(position)

    def kept(self, group: Group, chain: "array[int]", position: int) -> bool:
        """Whether `group` would have that key, had it lost none to an eviction or a reset."""
        if self.holds(group, chain, position):
            return True
        loss = self._loss(group, chain, position)
        return loss is not None and loss.reason != "replaced"

    def _loss(self, group: Group, chain: "array[int]", position: int) -> Loss | None:
        unit = self.settings.hash_block
        index = position // unit - 1
        if position % unit or not 0 <= index < len(chain):
            return None
        return self.groups[group.index].lost.get(chain[index])

    def stored_below(self, group: Group, chain: "array[int]", position: int) -> int | None:
        """Return the deepest position at or below `position` that `group` holds; None: there is none."""
        unit = self.settings.hash_block
        top = min(position // unit, len(chain))
        held = self.groups[group.index].held
        return next(((i + 1) * unit for i in range(top - 1, -1, -1) if chain[i] in held), None)

    def stored_above(self, group: Group, chain: "array[int]", position: int) -> int | None:
        """Return the nearest position above `position` that `group` holds; None: there is none."""
        unit = self.settings.hash_block
        held = self.groups[group.index].held
        return next(((i + 1) * unit for i in range(position // unit, len(chain)) if chain[i] in held), None)

    def _test(self, group: Group, chain: "array[int]", ever: bool) -> Callable[[int], bool]:
        unit = self.settings.hash_block
        residency = self.groups[group.index]
        members = residency.ever if ever else residency.held

        def test(position: int) -> bool:
            index = position // unit - 1
            return 0 <= index < len(chain) and position % unit == 0 and chain[index] in members

        return test

    def _longest(self, member: Callable[[int], bool], chain: "array[int]", limit: int) -> int:
        unit = self.settings.hash_block
        top = min(limit // unit, len(chain))
        return next(((i + 1) * unit for i in range(top - 1, -1, -1) if member(chain[i])), 0)

    def _refuse(self, row: Mapping[str, Any], chain: "array[int]", group: GroupResidency) -> None:
        for state in _REFUSALS:
            if not row[state]:
                continue
            refusal = Refusal(row["request_id"], state, row["chunk_start"], row["chunk_end"])
            for identity in self._named(row[state], chain):
                known = group.refused.get(identity)
                # A state that was computed once and refused says more than one that another request never made.
                if identity not in group.held and not (known and known.state == "masked" and state != "masked"):
                    group.refused[identity] = refusal

    def _named(self, text: str, chain: "array[int]") -> list[int]:
        """Return the identities of the positions in `text` that are named, in their order."""
        unit = self.settings.hash_block
        found: list[int] = []
        for run in parse_positions(text):
            if run.step % unit and len(run) > 1:
                on_grid = (position // unit - 1 for position in run if position % unit == 0)
                found += [chain[index] for index in on_grid if 0 <= index < len(chain)]
            elif run.start % unit == 0:
                # All or none of the run are on the grid; the first may be 0, which names nothing.
                step = max(run.step // unit, 1)
                first = run.start // unit - 1
                found += chain[first if first >= 0 else first + step : run[-1] // unit : step]
        return [identity for identity in found if identity != UNKNOWN] if UNKNOWN in found else found


@dataclass(frozen=True)
class View:
    """A cache, and a prompt as that replica names it: its first `shared` tokens are those of the prompt looked up."""

    residency: Residency
    chain: "array[int]"
    shared: int

    def prefix(self, limit: int, ever: bool = False) -> int:
        """Return how much of the prompt the cache's dense groups hold (or ever held), at most `limit` tokens."""
        return self.residency.dense_prefix(self.chain, min(limit, self.shared), ever)
