"""What is asked of a whole chain at once is what one position after the other says."""

from dataclasses import replace

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzers.finders import Positions
from analyzers.others import AT_ONCE, latest_others
from analyzers.replay import hit_on
from analyzers.residency import Residency
from analyzers.settings import Group, Settings, read_settings
from analyzers.views import View
from otel_cache.semconv import names

UNIT = 16
"""Tokens between fingerprints."""
GROUPS = 2
ATTRIBUTES = {
    names.GROUPS_KIND: [names.KIND_FULL_ATTENTION, names.KIND_FULL_ATTENTION],
    names.GROUPS_BLOCK_SIZE: [UNIT, UNIT],
    names.GROUPS_WINDOW: [0, 0],
    names.GROUPS_FLAGGED: [False, False],
    names.GROUPS_DROPS: [False, False],
    names.GROUPS_FINE_GRAINED: [True, True],
    names.GROUPS_LOOKUP_ORDER: ["0,1"],
    names.HIT_ALIGNMENT: UNIT,
    names.HASH_BLOCK_SIZE: UNIT,
    names.SCHEDULER_BLOCK_SIZE: UNIT,
    names.HASH_LOOKAHEAD_TOKENS: 0,
    names.PARTIAL_HITS: True,
    names.PROOF_LIMIT: names.PROOF_LAST_TOKEN,
    names.PREFIX_CACHING: True,
    names.RETENTION_INTERVAL: names.RETENTION_DENSE,
}

chains = st.lists(st.integers(1, 12), max_size=12, unique=True)
members = st.sets(st.integers(1, 12), max_size=12)
blocks = st.sampled_from([UNIT, 2 * UNIT, 3 * UNIT])
limits = st.integers(0, 14 * UNIT)


def settings(first: int, second: int, grid: int) -> Settings:
    """Return two dense groups with blocks of `first` and `second` tokens, and hits on multiples of `grid`."""
    plain = read_settings(ATTRIBUTES, "a test")
    groups = (replace(plain.groups[0], block_size=first), replace(plain.groups[1], block_size=second))
    return replace(plain, groups=groups, alignment=grid)


def one_by_one(view: View, groups: tuple[Group, ...]) -> Positions:
    """Return the positions at which all of `groups` have a key, asked one by one."""
    return Positions(lambda position: all(view.holds(group, position) for group in groups))


@given(chains, st.lists(members, min_size=GROUPS, max_size=GROUPS), blocks, blocks, blocks, limits)
def test_positions_are_those_of_the_predicate(
    chain: list[int], held: list[set[int]], first: int, second: int, step: int, limit: int
) -> None:
    """The end of the leading blocks and the last position, of one group and of two together."""
    cache = Residency(settings(first, second, UNIT))
    for residency, identities in zip(cache.groups, held, strict=True):
        residency.held = identities
    view = View(cache, chain, len(chain) * UNIT)
    for groups in (cache.settings.groups, cache.settings.groups[:1]):
        fast, slow = view.positions(groups), one_by_one(view, groups)
        assert [fast(position) for position in range(limit)] == [slow(position) for position in range(limit)]
        assert fast.leading(first, limit) == slow.leading(first, limit)
        assert fast.last(step, limit) == slow.last(step, limit)
        assert fast.last(step // 2, limit) == slow.last(step // 2, limit)


@given(chains, st.lists(members, min_size=GROUPS, max_size=GROUPS), blocks, blocks, limits)
def test_a_prefix_ends_where_a_group_has_a_gap(
    chain: list[int], held: list[set[int]], first: int, second: int, limit: int
) -> None:
    """Whole blocks from the start, and what is held of the first that is not whole, the least of the groups."""
    cache = Residency(settings(first, second, UNIT))
    for residency, identities in zip(cache.groups, held, strict=True):
        residency.held = identities
    view = View(cache, chain, len(chain) * UNIT)
    ends = [min(limit, view.shared)]
    for group in cache.settings.groups:
        whole = 0
        while view.holds(group, whole + group.block_size):
            whole += group.block_size
        inside = range(whole, whole + group.block_size, UNIT)
        ends.append(max([whole, *(position for position in inside if view.holds(group, position))]))
    assert view.prefix(limit) == min(ends)


begun = st.builds(lambda leading, more: {*range(1, leading + 1), *more}, st.integers(0, 16), members)
"""What is held of the chain 1, 2, 3, ...: some from the start, some beyond."""
sparse = st.sampled_from([names.KIND_MAMBA, names.KIND_SLIDING_WINDOW])


@hypothesis.settings(max_examples=400)
@given(
    st.lists(begun, min_size=3, max_size=3), st.tuples(sparse, sparse), st.sampled_from([UNIT, 2 * UNIT]), blocks,
    st.tuples(st.booleans(), st.booleans(), st.booleans()), st.booleans(), st.integers(0, 20 * UNIT),
)  # fmt: skip
def test_no_hit_is_longer_than_the_most_that_is_held_allows(
    held: list[set[int]],
    kinds: tuple[str, str],
    block: int,
    grid: int,
    drops: tuple[bool, ...],
    beyond: bool,
    limit: int,
) -> None:
    """Whatever the other groups are, whoever drops for speculation, and wherever a hit may end."""
    plain = settings(block, block, grid)
    made = (*plain.groups, replace(plain.groups[1], index=2))
    groups = tuple(
        replace(group, kind=kind, window=2 * UNIT, flagged=drop, drops=drop and kind != names.KIND_MAMBA)
        for group, kind, drop in zip(made, (names.KIND_FULL_ATTENTION, *kinds), drops, strict=True)
    )
    for order in (((0,), (1, 2)), ((0,), (1,), (2,)), ((1,), (0,), (2,)), ((1,), (2,))):
        cache = Residency(replace(plain, groups=groups, order=order, block_beyond=beyond))
        for residency, identities in zip(cache.groups, held, strict=True):
            residency.held = identities
        view = View(cache, list(range(1, 17)), 16 * UNIT)
        assert hit_on(view, limit) <= max(view.most(limit), 0)


@given(chains, members, limits)
def test_neighbours_are_the_nearest(chain: list[int], held: set[int], position: int) -> None:
    """The deepest state at or below a position, and the nearest above it."""
    cache = Residency(settings(UNIT, UNIT, UNIT))
    cache.groups[0].held = held
    view = View(cache, chain, len(chain) * UNIT)
    states = [(index + 1) * UNIT for index, identity in enumerate(chain) if identity in held]
    below, above = view.neighbours(position)
    assert below[0] == max((each for each in states if each <= position), default=None)
    assert above[0] == min((each for each in states if each > position), default=None)
    assert (below[1], above[1]) == (None, None)


@given(
    st.lists(st.tuples(st.integers(0, 3), chains, st.booleans()), max_size=12),
    st.sampled_from([0, 1 << 63]),
    st.sampled_from([1, 1 << 40]),
)
def test_the_latest_other_request_is_found(sends: list[tuple[int, list[int], bool]], high: int, factor: int) -> None:
    """Of everything that is named or asked for: the latest send of another that named it before."""
    named = [high ^ identity * factor for _, chain, _ in sends for identity in chain]
    acts = [act for act, (_, chain, _) in enumerate(sends) for _ in chain]
    had = [sends[act][2] for act in acts]
    expected = [
        max((acts[j] for j in range(i) if had[j] and named[j] == named[i] and owner(sends, acts, i, j)), default=-1)
        for i in range(len(named))
    ]
    owners = np.array([who for who, _, _ in sends], np.int64)
    arrays = np.array(named, np.uint64), np.array(acts, np.int64)
    assert latest_others(*arrays, owners, np.array(had, np.bool_)).tolist() == expected
    if all(had):
        assert latest_others(*arrays, owners).tolist() == expected


def owner(sends: list[tuple[int, list[int], bool]], acts: list[int], one: int, other: int) -> bool:
    """Whether two of what sends name are of different owners."""
    return sends[acts[one]][0] != sends[acts[other]][0]


def test_many_identities_are_found_as_few_are() -> None:
    """They are put in order part by part."""
    draw = np.random.default_rng(1)
    pool = draw.integers(0, 1 << 63, AT_ONCE, dtype=np.uint64) * np.uint64(2)
    named = pool[draw.integers(0, len(pool), AT_ONCE + 7)]
    acts = np.arange(len(named)) // 5
    owners = draw.integers(0, 100, acts[-1] + 1)
    latest: dict[int, list[tuple[int, int]]] = {}
    expected = []
    for identity, act in zip(named.tolist(), acts.tolist(), strict=True):
        before = latest.setdefault(identity, [])
        expected.append(next((at for at, who in reversed(before) if who != owners[act]), -1))
        before.append((act, owners[act]))
    assert latest_others(named, acts, owners).tolist() == expected
