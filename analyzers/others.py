"""Of each identity that requests named: which request named it last before, and was another."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Identities = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
AT_ONCE = 1 << 16
"""So many identities are put in order at once; of more, those that begin alike."""


def latest_others(named: Identities, acts: Ints, owners: Ints, had: Flags | None = None) -> Ints:
    """Return, for each identity that an act named, the latest act of another owner that had named it before; -1: none.

    A request is looked up again while it waits; its own prompt is not an earlier request's.

    Args:
        named: identities, act by act.
        acts: the number of the act, ascending.
        owners: by act, who it was.
        had: False for those that are only asked for; others do not find them.

    """
    if len(named) <= AT_ONCE:
        return _latest_others(named, acts, owners, had)
    found = np.full(len(named), -1, np.int64)
    first = (named >> np.uint64(60)).astype(np.uint8)
    for bits in range(16):
        alike = np.flatnonzero(first == bits)
        found[alike] = _latest_others(named[alike], acts[alike], owners, None if had is None else had[alike])
    return found


def _latest_others(named: Identities, acts: Ints, owners: Ints, had: Flags | None) -> Ints:
    found = np.full(len(named), -1, np.int64)
    order = _by_identity(named)
    # Whatever was named once only is of no use here.
    ordered = named[order]
    same = ordered[1:] == ordered[:-1]
    again = np.zeros(len(order), np.bool_)
    again[1:] |= same
    again[:-1] |= same
    order, ordered = order[again], ordered[again]
    if not len(order):
        return found
    counted = np.arange(len(order)) if had is None else np.flatnonzero(had[order])
    if not len(counted):
        return found
    # Of those that count: where a run of one owner begins, and where all of an identity begin.
    names, by = ordered[counted], owners[acts[order[counted]]]
    fresh = np.ones(len(counted), np.bool_)
    fresh[1:] = names[1:] != names[:-1]
    run = fresh.copy()
    run[1:] |= by[1:] != by[:-1]
    places = np.arange(len(counted))
    run_start = np.maximum.accumulate(np.where(run, places, 0))
    before_run = np.where(fresh[run_start], -1, run_start - 1)
    # For everyone, the last before it that counts: another's, or else what came before that one's run.
    last: Ints = np.arange(-1, len(order) - 1)
    if had is not None:
        last = np.cumsum(had[order], dtype=np.int64) - had[order] - 1
    known: Flags = last >= 0
    known[known] = names[last[known]] == ordered[known]
    own = known.copy()
    own[known] = by[last[known]] == owners[acts[order[known]]]
    last[own] = before_run[last[own]]
    known &= last >= 0
    found[order[known]] = acts[order[counted[last[known]]]]
    return found


def _by_identity(named: Identities) -> Ints:
    """Return the order by identity, equal ones as they are: what a stable argsort returns, in a fifth of its time."""
    places = np.uint64(max(len(named) - 1, 1).bit_length())
    low = (np.uint64(1) << places) - np.uint64(1)
    packed = named & ~low | np.arange(len(named), dtype=np.uint64)
    packed.sort()
    order = (packed & low).astype(np.int64)
    # Where identities differ in what the place has overwritten only, they are still to be put in order.
    ordered = named[order]
    packed &= ~low
    mixed = (packed[1:] == packed[:-1]) & (ordered[1:] != ordered[:-1])
    for high in np.unique(packed[1:][mixed]):
        begin, end = np.searchsorted(packed, high), np.searchsorted(packed, high, "right")
        order[begin:end] = order[begin:end][np.argsort(ordered[begin:end], kind="stable")]
    return order


def latest_among(
    owners: Ints, had: Sequence[tuple[Identities, Ints]], asked: tuple[Identities, Ints] | None = None
) -> list[Ints]:
    """Return `latest_others` for several series of identities and acts: those that were named, and those asked."""
    parts = [*had, asked] if asked else had
    named, acts = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    counts = np.arange(len(named)) < sum(len(part[0]) for part in had)
    order = np.argsort(acts, kind="stable")
    found = np.empty(len(named), np.int64)
    found[order] = latest_others(named[order], acts[order], owners, counts[order] if asked else None)
    return np.split(found, np.cumsum([len(part[0]) for part in parts])[:-1])
