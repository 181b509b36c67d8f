"""What one life of a replica holds, group by group, as its stores and evictions say; and what became of the rest."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from analyzers.events import Evicted, Stored
from analyzers.evictions import takers_of
from analyzers.model import State
from analyzers.prompts import UNKNOWN, Chain, identities, mix_of
from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.positions import parse_positions


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

    `used` is when (ns) a request last stored it or hit it; 0: not known, or reset. `taker` is the group that was given
    the block; None: not known.
    """

    time: int
    evictor: str
    reason: str
    used: int = 0
    taker: int | None = None


NumberedLoss = tuple[int, str, str, int, int | None, int]
"""A `Loss` as a plain tuple, and the number of the event."""
TIME: Final = 0
REASON: Final = 2
"""Places in it."""


class GroupResidency:
    """One group: identities held now, and lost.

    `stored` counts the keys that were registered, `peak` those held at once at the most, `forgotten` those once held
    that are in `held` and `lost` no more.
    """

    __slots__ = ("forgotten", "held", "lost", "peak", "stored")

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.lost: dict[int, NumberedLoss] = {}
        self.stored = 0
        self.peak = 0
        self.forgotten = 0

    @property
    def remembered(self) -> int:
        """How many identities it holds or lost; none is both."""
        return len(self.held) + len(self.lost)

    def has_had(self, identity: int) -> bool:
        """Whether it holds an identity or lost it."""
        return identity in self.held or identity in self.lost

    def loss(self, identity: int) -> Loss | None:
        """Return what became of an identity; None: it is held, or never was, or that is forgotten."""
        lost = self.lost.get(identity)
        return Loss(*lost[:-1]) if lost else None

    @property
    def distinct(self) -> int:
        """How many identities were ever held, those of a life that is over included."""
        return self.remembered + self.forgotten


_Said = tuple[int, str, int | None, int | None]
"""The number of an event, and of a refusal its request and its chunk."""


class _Among(NamedTuple):
    """Groups that stores speak of together; what was refused of their sparse ones, and what was never made of them."""

    members: Sequence[GroupResidency]
    dense: bool
    sparse: Sequence[int]
    masked: dict[int, _Said]
    unmade: dict[int, _Said]


class Residency:
    """The cache of one life, replayed event by event.

    Attributes:
        groups: by index.
        computed: identities of what was computed here, where there are no dense groups.
        over: another life of the replica has begun.
        peak: keys held per group when all together held most, up to the last `settle`; so that of each group.
        alone: the dense group, where there is one only and hits are made of whole blocks of it.
        bounding: no hit is longer than what that one holds without a gap, less `given_up`.
        given_up: what it drops of that for speculation, tokens.
        everywhere: identities that a dense group had, or that were computed where there is none; shared with others.

    """

    def __init__(self, settings: Settings, replica: str = "") -> None:
        self.settings = settings
        self.replica = replica
        self.groups = [GroupResidency() for _ in settings.groups]
        self._held = [group.held for group in self.groups]
        self.computed: set[int] = set()
        self.over = False
        self.peak = [0 for _ in settings.groups]
        self._times, self._counts = array("q"), array("q")
        self.everywhere: set[int] = set()
        self._used: dict[int, int] = {}
        # By request, what each of its stores said of the mask: of which groups, the positions that it asked for and
        # that were not made, and those that were stored, as text.
        self._told: dict[str, list[tuple[Sequence[int], str, str]]] = {}
        self._dense = [group.dense for group in settings.groups]
        self._most = 0
        # Something was stored since it was last looked at how much is held.
        self._grown = False
        self._clock = 0
        self._among: dict[Sequence[int], _Among] = {}
        # Where a hit is made of whole blocks, one without the first is none.
        whole = all(
            group.block_size <= settings.alignment or group.block_size % settings.alignment
            for group in settings.dense_groups
        )
        self._first = [
            (group.block_size // settings.hash_block - 1, self.groups[group.index])
            for group in settings.dense_groups if whole
        ]  # fmt: skip
        self.alone = settings.dense_groups[0] if len(self._first) == 1 else None
        self.bounding = self.alone is not None and self.alone.index in settings.asked
        self.given_up = 0
        if self.alone and self.alone.flagged and self.alone.drops:
            self.given_up = min(settings.alignment, self.alone.block_size)

    def store(self, row: Stored, chain: Chain) -> None:
        """Apply what a store says of some groups, the prompt of whose request is `chain`."""
        clock = self._clock = self._clock + 1
        request, numbers, time, _, _, text, masked, unmade, wanted, start, end = row
        among = self._among.get(numbers) or self._sorted(numbers)
        stored: Sequence[int] = ()
        if text:
            stored = self._named(text, chain)
            self._hold(among.members, stored, time)
            if among.dense:
                self.everywhere.update(stored)
        if not (sparse := among.sparse):
            return
        if text or wanted:
            self._told.setdefault(request, []).append((sparse, wanted, text))
        refused = self._named(masked, chain) if masked else ()
        skipped = self._named(unmade, chain) if unmade else ()
        if refused or skipped:
            said = (clock, request, start, end)
            among.masked.update(dict.fromkeys(refused, said))
            among.unmade.update(dict.fromkeys(skipped, said))
        if not self.settings.dense_groups:
            for computed in (stored, refused, skipped):
                self.computed.update(computed)
                self.everywhere.update(computed)

    def evict(self, row: Evicted) -> None:
        """Apply an eviction."""
        time, number, reset, fingerprints, keys, evictor, takers, reason = row
        if reset:
            self.clear(time)
            return
        if not 0 <= number < len(self.groups):
            return
        if self._grown:
            self.settle()
        clock = self._clock = self._clock + 1
        group = self.groups[number]
        evictor, reason = evictor or "", reason or "allocation"
        gone = identities(fingerprints, b"")
        if keys:
            width = FINGERPRINT_BYTES
            gone = [each ^ mix_of(keys[width * i : width * (i + 1)]) for i, each in enumerate(gone)]
        held, lost, used = group.held, group.lost, self._used.get
        for identity, taker in zip(gone, takers_of(takers, len(gone)), strict=False):
            if identity in held:
                held.remove(identity)
                lost[identity] = (time, evictor, reason, used(identity, 0), taker, clock)
            elif known := lost.get(identity):
                lost[identity] = (time, evictor, reason, used(identity, 0), taker, known[-1])

    def may_begin(self, chain: Chain) -> bool:
        """Whether it may hold something of `chain` from the start; False: it lacks the first block."""
        for index, group in self._first:  # noqa: SIM110 (a generator would cost more than all it asks)
            if index >= len(chain) or chain[index] not in group.held:
                return False
        return True

    def may_have_begun(self, chain: Chain) -> bool:
        """Whether it may have held something of `chain` from the start."""
        for index, group in self._first:
            if index >= len(chain) or (chain[index] not in group.held and chain[index] not in group.lost):
                return False
        return True

    def unmade(self, group: int, request: str) -> set[int]:
        """Return the positions (tokens) that the mask wanted of `request` in `group`, and where no state was made."""
        texts = (wanted for groups, wanted, _ in self._told.get(request, ()) if group in groups)
        return {position for text in texts for run in parse_positions(text) for position in run}

    def wanted(self, group: int, request: str) -> set[int]:
        """Return the positions (tokens) that the mask wanted of `request` in `group`."""
        texts = (stored for groups, _, stored in self._told.get(request, ()) if group in groups)
        return self.unmade(group, request).union(*(run for text in texts for run in parse_positions(text)))

    def look(self, time: int) -> None:
        """Note how much is held at `time` (ns)."""
        self._times.append(time)
        self._counts.extend(map(len, self._held))

    @property
    def moments(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Time (ns) and keys held per group at each lookup."""
        width = len(self.groups)
        return [(time, tuple(self._counts[i * width : (i + 1) * width])) for i, time in enumerate(self._times)]

    def use(self, chain: Chain, tokens: int, time: int) -> None:
        """Note that a request hit the first `tokens` of `chain` at `time` (ns)."""
        if tokens:
            self._used.update(dict.fromkeys(chain[: tokens // self.settings.hash_block], time))

    def clear(self, time: int) -> None:
        """Drop everything at `time` (ns): the cache was cleared, or this life is over."""
        self.settle()
        self._clock += 1
        loss = (time, "", "reset", 0, None, self._clock)
        for group in self.groups:
            group.lost.update(dict.fromkeys(group.held, loss))
            group.held.clear()

    def finish(self, time: int) -> None:
        """Drop everything for good: this life is over at `time` (ns), and nobody asks what else it had."""
        self.clear(time)
        self.over = True
        self._used.clear()
        self._told.clear()
        self._among.clear()
        for group, dense in zip(self.groups, self._dense, strict=True):
            if not dense:
                group.forgotten = group.distinct
                group.lost.clear()

    def _hold(self, members: Sequence[GroupResidency], stored: Sequence[int], time: int) -> None:
        """Have some groups hold what was stored at `time` (ns)."""
        self._grown = True
        if len(stored) == 1:
            (identity,) = stored
            self._used[identity] = time
            for group in members:
                group.stored += 1
                group.held.add(identity)
                if identity in group.lost:
                    del group.lost[identity]
            return
        self._used.update(dict.fromkeys(stored, time))
        count = len(stored)
        for group in members:
            group.stored += count
            group.held.update(stored)
            lost = group.lost
            if not lost.keys().isdisjoint(stored):
                for each in stored:
                    lost.pop(each, None)

    def settle(self) -> None:
        """Note how much is held, where it is the most: to be done before something goes, and at the end."""
        self._grown = False
        total = 0
        for group in self.groups:
            now = len(group.held)
            total += now
            if now > group.peak:
                group.peak = now
        if total > self._most:
            self._most = total
            self.peak = [len(group.held) for group in self.groups]

    def refusal(self, group: int, identity: int) -> Refusal | None:
        """Return how a request left `group` without an identity that it has not held since; None: none did.

        A state that was computed once and refused says more than one that another request never made.
        """
        if identity in self.groups[group].held:
            return None
        lost = self.groups[group].lost.get(identity)
        since = lost[-1] if lost else 0
        among = [each for each in self._among.values() if group in each.sparse]
        states: Sequence[State] = ("masked", "not_materialized")
        for state in states:
            tables = (each.masked if state == "masked" else each.unmade for each in among)
            said = max((table[identity] for table in tables if identity in table), default=None)
            if said and said[0] > since:
                _, request, start, end = said
                return Refusal(request, state, start, end)
        return None

    def _sorted(self, numbers: Sequence[int]) -> "_Among":
        """Return, and keep, which groups of a store there are, and of what kind."""
        known = [number for number in numbers if 0 <= number < len(self.groups)]
        sparse = tuple(number for number in known if not self._dense[number])
        members = [self.groups[number] for number in known]
        among = self._among[numbers] = _Among(members, len(sparse) < len(known), sparse, {}, {})
        return among

    def _named(self, text: str, chain: Chain) -> list[int]:
        """Return the identities of the positions in `text` that are named, in their order."""
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
