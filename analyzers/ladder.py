"""The ladder: how every prompt token of a lookup gets its class.

Boundaries fall from `b0`, the prompt, to `b7`, the predicted hit; each step's difference goes to one class, so the hit
and the classes always add up to the prompt. Every boundary is predicted from what was stored and evicted before, from
the prompts and the settings; the lookup's own result is compared at the end only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from analyzers import model
from analyzers.finders import Positions, PositionsOf, agree, drop_unit, each_of, find, furthest
from analyzers.fleet_views import FleetViews, Lost, lost_by
from analyzers.missing import Missing, find_missing, state_class
from analyzers.prompts import Prompt
from analyzers.seen import Before
from analyzers.settings import Group, Settings
from analyzers.views import View


class Coming(NamedTuple):
    """How far (tokens) a request that was at work registered a prompt afterwards, when (ns), and which request."""

    reached: int
    time: int = 0
    producer: str = ""


class Lacking(NamedTuple):
    """What evidence a lookup's ladder lacks.

    Attributes:
        elsewhere: some of another cache, so what this one never had is not certain.
        later: some of any cache, before or after, so what was still to come is not certain.

    """

    elsewhere: bool
    later: bool


class Scene(NamedTuple):
    """What is known of the caches at a lookup.

    Attributes:
        limit: the longest hit that vLLM allowed, tokens.
        same_key: how much of the prompt an earlier request had under its key, tokens.
        here: the prompt against the replica's cache at the lookup.
        fleet: all caches that could have held the prompt, `here` included, each with the prompt as it names it.
        coming: takes a position (tokens); how far beyond it producers at work registered the prompt afterwards.
        completed: a KV connector brings what a group lacks at the furthest hit of another.
        lacking: what of all that may be wrong.

    """

    limit: int
    same_key: int
    here: View
    fleet: FleetViews
    coming: Callable[[int], Coming]
    completed: bool
    lacking: Lacking


_NOTHING: Mapping[str, Any] = {}


class Step(NamedTuple):
    """Tokens from `lower` to `upper` that were lost to `cls`, and what says so."""

    cls: str
    upper: int
    lower: int
    data: Mapping[str, Any] = _NOTHING


# What `Step` does, without a frame of the interpreter for each.
_make_step = partial(tuple.__new__, Step)


@dataclass(slots=True)
class Explained:
    """The ladder of one lookup: its steps lead from the prompt down to the predicted hit.

    Attributes:
        predicted: the hit that the evidence says, tokens.
        needed: the boundary that every group had to have a state at.
        steps: from the top.
        missing: the groups without a state at `needed`.
        intact: where the hit would have ended, had the cache lost nothing.
        gone: the groups that lost what a hit at `intact` needed.
        reason: what the grid has to do with it; names separated by commas.

    """

    predicted: int
    needed: int
    steps: Sequence[Step]
    missing: Sequence[Missing]
    intact: int
    gone: Sequence[Missing] = ()
    reason: str = ""


class Walk:
    """The way down the ladder of a prompt of `top` tokens: where it has got to (tokens), and the steps so far."""

    __slots__ = ("at", "reasons", "steps", "top")

    def __init__(self, top: int) -> None:
        self.top = top
        self.at = top
        self.steps: list[Step] = []
        self.reasons: list[str] = []

    def down(self, cls: str, lower: int, data: Mapping[str, Any] = _NOTHING) -> None:
        """Step down to `lower`, unless it is there."""
        if self.at > lower:
            self.steps.append(_make_step((cls, self.at, lower, data)))
            self.at = lower


def begin(tokens: int, seen: Before, limit: int, settings: Settings) -> Walk:
    """Walk down from a prompt's `tokens` to the last boundary at which a hit could end of what earlier requests had."""
    walk = Walk(tokens)
    same_key, any_key = seen.same_key, seen.any_key
    walk.down(model.COLD, any_key if any_key > same_key else same_key)
    walk.down(model.KEY_DIFFERENCE, same_key)
    grid = last_boundary(settings, walk.at, limit)
    if grid == 0 < walk.at:
        walk.reasons.append("below_minimum")
        walk.down(model.ALIGNMENT, 0)
    walk.down(model.TAIL, grid)
    return walk


def nothing_left(walk: Walk, same_key: int, lacking: Lacking, once: int = 0) -> Explained:
    """Return the ladder of a lookup that could not have a hit.

    Args:
        walk: which has got down to 0.
        same_key: how much of the prompt an earlier request had under its key, tokens.
        lacking: what may be wrong.
        once: what the replica had ever had of it, tokens.

    """
    return Explained(0, 0, _certain(walk, same_key, lacking, once), (), 0, (), _joined(walk.reasons))


def explain(walk: Walk, prompt: Prompt, scene: Scene) -> Explained:
    """Walk on down the ladder for `prompt`, from where `begin` has got to."""
    here, limit, same_key = scene.here, scene.limit, scene.same_key
    settings = here.residency.settings
    hashed = len(prompt.chain) * settings.hash_block
    # What is held was registered: where all is, nothing else is to be asked.
    once = registered = walk.at
    local = here.prefix(once)
    if local < once:
        once = here.ever(once)
        _registration(walk, scene, once)
        registered = walk.at
        if local > registered:
            local = here.prefix(registered)
    completed = min(registered, furthest(settings, here.positions, limit, hashed)) if scene.completed else 0
    _residence(walk, scene, max(local, completed), once)
    if not walk.at:
        return nothing_left(walk, same_key, scene.lacking, once)
    if not scene.completed and here.most(limit) <= 0:
        # All that is held is dropped.
        walk.down(model.SPECULATIVE_DROP, 0)
        return nothing_left(walk, same_key, scene.lacking, once)

    # A state of a sparse group can be no further on than what an earlier request had of the prompt.
    possible = min(hashed, max(0, same_key - settings.lookahead))
    dense_only = _dense_only(here, possible)
    held = walk.at
    needed = completed if scene.completed else min(held, agree(settings, dense_only, limit, hashed))
    if needed < held:
        walk.down(model.SPECULATIVE_DROP, max(needed, min(held, _after_drop(settings, dense_only, limit, hashed))))
    if needed < walk.at:
        undropped = min(held, agree(settings, dense_only, limit, hashed, drop=False))
        walk.reasons.append("after_drop" if undropped > needed else "grid")
    walk.down(model.ALIGNMENT, needed)

    predicted = needed
    if needed and len(settings.dense_groups) < len(settings.groups) and not scene.completed:
        predicted = min(needed, agree(settings, here.positions, limit, hashed))
    result = Explained(predicted, needed, walk.steps, (), max(needed, predicted))
    if predicted < needed:
        result.missing = find_missing(here, needed)
        result.intact = min(registered, agree(settings, each_of(here.kept), limit, hashed))
        _states(walk, here, result)
    result.steps = _certain(walk, same_key, scene.lacking, once)
    result.reason = _joined(walk.reasons)
    return result


def _joined(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    return reasons[0] if len(reasons) == 1 else ",".join(dict.fromkeys(reasons))


def _registration(walk: Walk, scene: Scene, once: int) -> None:
    """Step down to what had been registered anywhere before the lookup, of it `once` here."""
    at, settings = walk.at, scene.here.residency.settings
    if once >= at or (registered := scene.fleet.registered(at)) >= at:
        return
    coming = scene.coming(registered)
    soon = max(registered, min(at, coming.reached))
    # A dense block is registered at its end only; a shorter gap than a block is no missing registration.
    block = max((group.block_size for group in settings.dense_groups), default=settings.hash_block)
    if scene.lacking.later:
        walk.down(model.UNKNOWN, registered)
    elif at > soon:
        inside = at - soon < block and bool(settings.dense_groups)
        walk.reasons.append("inside_block" if inside else "never_registered")
        walk.down(model.ALIGNMENT if inside else model.NOT_MATERIALIZED, soon)
    walk.down(model.IN_FLIGHT, registered, {"producer": coming.producer, "registered_at": coming.time})


def _residence(walk: Walk, scene: Scene, local: int, once: int) -> None:
    """Step down to what the dense groups of this replica hold."""
    at = walk.at
    if local >= at:
        return
    up = max(scene.fleet.held(at), local)
    if up < at:
        # What this replica once had, it lost itself; what lies above, somebody else did.
        if at > (lower := min(at, max(up, once))):
            _lost(walk, scene.fleet.lost(up), lower)
        if walk.at > up:
            _lost(walk, _lost_here(scene, up), up)
    if local < walk.at:
        walk.down(model.HELD_ELSEWHERE, max(local, min(once, walk.at)), _there(scene, walk.at, up))
        if walk.at > local:
            _lost(walk, _lost_here(scene, local), local)


def _there(scene: Scene, at: int, up: int) -> dict[str, Any]:
    """Return who holds the prefix up to `up`, and of the one with the longest hit what it would take for more.

    `hit` is what it would have given, `reach` where that could end had every group its state, `lacking` the groups
    without it.
    """
    found: list[tuple[int, int, View]] = []
    for view in scene.fleet.holding:
        if view is not scene.here and not view.residency.over and view.prefix(at) >= up:
            settings, hashed = view.residency.settings, len(view.chain) * view.unit
            limit = min(scene.limit, view.shared)
            possible = min(hashed, max(0, scene.same_key - settings.lookahead))
            reach = min(at, agree(settings, _dense_only(view, possible), limit, hashed))
            found.append((min(limit, agree(settings, view.positions, limit, hashed)), reach, view))
    data: dict[str, Any] = {"replicas": scene.fleet.holders(at, up)}
    if found:
        hit, reach, view = max(found, key=lambda each: each[:2])
        lacking = [entry.group.index for entry in find_missing(view, reach)] if hit < reach else []
        data |= {"hit": hit, "reach": reach, "lacking": lacking}
    return data


def _lost_here(scene: Scene, position: int) -> Lost | None:
    return lost_by(scene.here.residency, scene.here.chain, position)


def _lost(walk: Walk, lost: Lost | None, lower: int) -> None:
    """Step down to `lower` for what was lost of the first dense block beyond it."""
    if lost is None:
        walk.down(model.EVICTED, lower, {"groups": []})
        return
    data = {"loss": lost.loss, "replica": lost.residency.replica, "groups": lost.groups}
    walk.down(model.RESET if lost.reset else model.EVICTED, lower, data)


def _states(walk: Walk, here: View, result: Explained) -> None:
    """Step down to the predicted hit: what became of the states at the boundary that was needed."""
    cls = state_class(result.missing)
    if result.intact > result.needed:
        # The prefix was shortened by a loss: at the boundary before it, every group had had what a hit needed.
        result.gone = find_missing(here, result.intact, intact=True)
        sparse = [entry.loss for entry in result.gone if not entry.group.dense and entry.loss]
        cls = _last_loss(walk.steps)
        if sparse:
            cls = model.RESET if any(loss.reason == "reset" for loss in sparse) else model.CHECKPOINT_EVICTED
    loss = next((entry.loss for entry in (*result.gone, *result.missing) if entry.loss), None)
    data: dict[str, Any] = {"loss": loss, "replica": here.residency.replica} if loss else {}
    if result.gone:
        data["intact"] = result.intact
    walk.down(cls, result.predicted, data)


def _last_loss(steps: Sequence[Step]) -> str:
    return next((step.cls for step in reversed(steps) if step.cls in (model.EVICTED, model.RESET)), model.EVICTED)


def _certain(walk: Walk, same_key: int, lacking: Lacking, once: int) -> Sequence[Step]:
    """Return the steps, those `unknown` that evidence of another cache could have changed had it been there."""
    if not lacking.elsewhere:
        return walk.steps
    whole = same_key >= walk.top
    found: list[Step] = []
    for step in walk.steps:
        if step.lower >= once and whole and step.cls == model.TAIL:
            found.append(step)
            continue
        middle = min(max(once, step.lower), step.upper)
        if step.upper > middle:
            found.append(Step(model.UNKNOWN, step.upper, middle))
        if middle > step.lower:
            found.append(Step(step.cls, middle, step.lower, step.data))
    return found


def last_boundary(settings: Settings, seen: int, limit: int) -> int:
    """Return where a hit of at most `limit` tokens can end of a prompt whose first `seen` another had; tokens."""
    top = min(limit, seen - settings.lookahead)
    return max(top, 0) // settings.alignment * settings.alignment


def _dense_only(here: View, possible: int) -> PositionsOf:
    """Return what would be held if each sparse group had a state wherever the dense ones allow one."""
    top = possible if here.residency.settings.dense_groups else here.prefix(possible)

    def positions(groups: Sequence[Group]) -> Positions:
        return here.positions(groups) if groups[0].dense else _UpTo(top)

    return positions


class _UpTo(Positions):
    """Every position up to the last possible one."""

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, position: int) -> bool:
        return position <= self._top

    def leading(self, block: int, limit: int) -> int:
        return min(limit, self._top) // block * block

    def last(self, step: int, limit: int) -> int:
        return min(limit, self._top) // step * step


def _after_drop(settings: Settings, held: PositionsOf, limit: int, hashed: int) -> int:
    """Return how far the groups that drop for speculation reach after the drop, before any alignment."""
    reach = limit
    alone = len(settings.groups) == 1
    for group in settings.groups:
        if group.drops and (group.dense or settings.dense_groups):
            beyond = settings.block_beyond and not alone
            top = min(limit + drop_unit(settings, group), hashed) if beyond else limit
            matched = find(group, held((group,)), top, False, settings.alignment).matched
            reach = min(reach, max(matched - min(settings.alignment, group.block_size), 0))
    return reach
