"""One prompt against one cache: how much of it is held, from the start and group by group. Lengths in tokens."""

from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from math import lcm
from operator import indexOf

from analyzers.finders import Positions
from analyzers.prompts import UNKNOWN, Chain
from analyzers.residency import GroupResidency, Loss, Residency
from analyzers.settings import Group


class View:
    """A cache, and a prompt as that replica names it: its first `shared` tokens are those of the prompt looked up.

    It holds for one moment: what has been found out once is not asked of the cache again.
    """

    __slots__ = ("_ever", "_held", "_leading", "_positions", "chain", "residency", "shared", "unit")

    def __init__(self, residency: Residency, chain: Chain, shared: int) -> None:
        self.residency = residency
        self.chain = chain
        self.shared = shared
        self.unit = residency.settings.hash_block
        self._held: int | None = None
        self._ever: int | None = None
        self._leading: dict[int, int] = {}
        self._positions: dict[tuple[int, int], Positions] = {}

    def prefix(self, limit: int) -> int:
        """Return how much of the prompt all dense groups hold without a gap, at most `limit` tokens.

        Without dense groups: how much of it was computed here.
        """
        if (held := self._held) is None:
            if not self.residency.settings.dense_groups:
                return self._computed(limit)
            held = self._held = self._reached(self.leading, _has)
        return held if held < limit else limit

    def ever(self, limit: int) -> int:
        """Return how much of the prompt all dense groups hold or once held, as `prefix` does."""
        if (had := self._ever) is None:
            if not self.residency.settings.dense_groups:
                return self._computed(limit)
            had = self._ever = self._reached(self._leading_ever, GroupResidency.has_had)
        return had if had < limit else limit

    def _computed(self, limit: int) -> int:
        return last_of(self.chain, self.residency.computed, min(limit, self.shared) // self.unit, 1) * self.unit

    def most(self, limit: int) -> int:
        """Return what no hit of at most `limit` tokens is longer than, as far as what dense groups hold tells."""
        held, residency = self.prefix(limit), self.residency
        if not residency.bounding:
            return limit
        # Where it ends before it has to, what is dropped for speculation comes off.
        return held - residency.given_up if held < limit and held < self.shared else held

    def _reached(self, leading: Callable[[Group], int], has: Callable[[GroupResidency, int], bool]) -> int:
        shared = self.shared
        if group := self.residency.alone:
            reach = leading(group) * group.block_size
            return reach if reach < shared else shared
        settings = self.residency.settings
        grid = settings.alignment
        reached = []
        for group in settings.dense_groups:
            length = leading(group) * group.block_size
            if grid < group.block_size and not group.block_size % grid:
                length = self._inside(group, length, has)
            reached.append(length)
        return min(shared, *reached)

    def leading(self, group: Group) -> int:
        """Return how many blocks from the start `group` holds without a gap."""
        if (known := self._leading.get(group.index)) is None:
            held = self.residency.groups[group.index].held
            known = self._leading[group.index] = _leading(self.chain, held, group.block_size // self.unit)
        return known

    def _leading_ever(self, group: Group) -> int:
        """Return how many blocks from the start `group` has had without a gap."""
        step, held = group.block_size // self.unit, self.leading(group)
        residency = self.residency.groups[group.index]
        beyond = self.chain[(held + 1) * step - 1 :: step]
        # What is lost is lost from the end, mostly.
        lost = _leading(beyond, residency.lost, 1)
        if lost == len(beyond) or beyond[lost] not in residency.held:
            return held + lost
        never = set(beyond).difference(residency.held).difference(residency.lost)
        return held + (indexOf(map(never.__contains__, beyond), True) if never else len(beyond))

    def _inside(self, group: Group, length: int, has: Callable[[GroupResidency, int], bool]) -> int:
        """Return what `group` has of the first `length` tokens and of the next block, in which hits may end."""
        grid, unit, whole = self.residency.settings.alignment, self.unit, len(self.chain) * self.unit
        residency = self.residency.groups[group.index]
        top = min(length + group.block_size - grid, whole // grid * grid)
        for position in range(top, length, -grid):
            if position % unit == 0 and has(residency, self.chain[position // unit - 1]):
                return position
        return length

    def is_in(self, members: set[int], position: int) -> bool:
        """Whether `members` have the prefix that ends at `position`."""
        index = position // self.unit - 1
        return position % self.unit == 0 and 0 <= index < len(self.chain) and self.chain[index] in members

    def holds(self, group: Group, position: int) -> bool:
        """Whether `group` has a key for the prefix that ends at `position`."""
        return self.is_in(self.residency.groups[group.index].held, position)

    def kept(self, group: Group, position: int) -> bool:
        """Whether `group` would have that key, had it lost none to an eviction or a reset."""
        if self.holds(group, position):
            return True
        loss = self.loss(group, position)
        return loss is not None and loss.reason != "replaced"

    def loss(self, group: Group, position: int) -> Loss | None:
        """Return what became of the key that `group` had for the prefix that ends at `position`, if it lost it."""
        return loss_of(self.residency, self.chain, group, position)

    def neighbours(self, position: int) -> tuple[Sequence[int | None], Sequence[int | None]]:
        """Return of every group the deepest position at or below `position` that it holds, and the nearest above.

        None: there is none.
        """
        chain, groups, unit = self.chain, self.residency.groups, self.unit
        first = position // unit
        beyond = chain[first:] if first else chain
        following = beyond[0] if beyond else UNKNOWN
        below: list[int | None] = []
        above: list[int | None] = []
        for group in groups:
            held = group.held
            low = high = None
            if following in held:
                high = (first + 1) * unit
            elif not held.isdisjoint(beyond):
                high = (first + indexOf(map(held.__contains__, beyond), True) + 1) * unit
            if first and (high or not held.isdisjoint(chain)):
                low = last_of(chain, held, first, 1) * unit or None
            below.append(low)
            above.append(high)
        return below, above

    def positions(self, groups: Sequence[Group]) -> Positions:
        """Return where all of `groups` have a key: one group, or those of an entry of the lookup's order."""
        key = (groups[0].index, len(groups))
        if (known := self._positions.get(key)) is None:
            known = self._positions[key] = _Held(self, groups)
        return known


@lru_cache
def no_neighbours(groups: int) -> tuple[Sequence[None], Sequence[None]]:
    """Return what `View.neighbours` does of so many groups that hold nothing of a prompt."""
    return (None,) * groups, (None,) * groups


class _Held(Positions):
    """The positions at which all of some groups have a key."""

    __slots__ = ("_chain", "_groups", "_known", "_members", "_of", "_unit")

    def __init__(self, view: View, groups: Sequence[Group]) -> None:
        # Not the view itself: it has this, and what refers to one another stays until somebody looks for it.
        self._chain, self._unit, self._known, self._of = view.chain, view.unit, view._leading, view.residency.groups
        self._groups = groups
        self._members: list[set[int]] | None = None

    def _sets(self) -> list[set[int]]:
        """Return what each group holds: of most prompts nobody asks more than how far it goes from the start."""
        if (members := self._members) is None:
            members = self._members = [self._of[group.index].held for group in self._groups]
        return members

    def __call__(self, position: int) -> bool:
        index = position // self._unit - 1
        if position % self._unit or not 0 <= index < len(self._chain):
            return False
        identity = self._chain[index]
        return all(identity in members for members in self._sets())

    def leading(self, block: int, limit: int) -> int:
        blocks = limit // block
        for group in self._groups:
            if group.block_size != block:
                return super().leading(block, limit)
            if (known := self._known.get(group.index)) is None:
                held = self._of[group.index].held
                known = self._known[group.index] = _leading(self._chain, held, block // self._unit)
            if known < blocks:
                blocks = known
        return blocks * block

    def last(self, step: int, limit: int) -> int:
        chain, unit = self._chain, self._unit
        every = lcm(step, unit) // unit
        first, *others = self._sets()
        top = last_of(chain, first, limit // unit, every)
        while top:
            for held in others:
                if chain[top - 1] not in held:
                    # No further than what this one has.
                    top = last_of(chain, first, last_of(chain, held, top, every), every)
                    break
            else:
                break
        return top * unit


def _has(residency: GroupResidency, identity: int) -> bool:
    return identity in residency.held


def _leading(chain: Chain, members: Container[int], step: int) -> int:
    """Return how many of the entries of `chain`, every `step`, `members` have one after the other."""
    if len(chain) < step or chain[step - 1] not in members:
        return 0
    blocks = chain if step == 1 else chain[step - 1 :: step]
    try:
        return indexOf(map(members.__contains__, blocks), False)
    except ValueError:
        return len(blocks)


def last_of(chain: Chain, members: set[int], top: int, step: int) -> int:
    """Return the last of the numbers of entries from `step` on, every `step`, that `members` have; 0: none.

    Entries are numbered from 1; `top` is the last that counts.
    """
    top = min(top, len(chain)) // step * step
    if top <= 0:
        return 0
    if chain[top - 1] in members:
        return top
    try:
        return top - indexOf(map(members.__contains__, chain[top - 1 :: -step]), True) * step
    except ValueError:
        return 0


def loss_of(cache: Residency, chain: Chain, group: Group, position: int) -> Loss | None:
    """Return what became of the key that `group` had for the prefix of `chain` that ends at `position`."""
    unit = cache.settings.hash_block
    index = position // unit - 1
    if position % unit or not 0 <= index < len(chain):
        return None
    return cache.groups[group.index].loss(chain[index])
