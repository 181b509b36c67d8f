"""The ladder: how every prompt token of a lookup gets its class.

Boundaries fall from `b0`, the prompt, to `b7`, the predicted hit; each step's difference goes to one class, so the hit
and the classes always add up to the prompt. Every boundary is predicted from what was stored and evicted before, from
the prompts and the settings; the lookup's own result is compared at the end only.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers import model
from analyzers.finders import agree, drop_unit, find, furthest
from analyzers.missing import Missing, find_missing, state_class
from analyzers.prompts import Prompt
from analyzers.residency import Loss, Residency, View
from analyzers.settings import Group, Settings


@dataclass(frozen=True)
class Seen:
    """How much of a prompt earlier requests had: under the same key, and whatever the key. Tokens."""

    same_key: int
    any_key: int


@dataclass(frozen=True)
class Coming:
    """How far (tokens) a request that was at work registered a prompt afterwards, when (ns), and which request."""

    reached: int
    time: int = 0
    producer: str = ""


@dataclass(frozen=True)
class Scene:
    """What is known at a lookup.

    Attributes:
        limit: the longest hit that vLLM allowed, tokens.
        seen: what earlier requests had of the prompt.
        here: the replica's cache at the lookup.
        fleet: all caches that could have held the prompt, `here` included, each with the prompt as it names it.
        coming: takes a position (tokens); how far beyond it producers at work registered the prompt afterwards.
        completed: a KV connector brings what a group lacks at the furthest hit of another.
        holes_elsewhere: evidence of another cache is missing, so what this one never had is not certain.
        holes_later: evidence of some cache is missing, before or after, so what was still to come is not certain.

    """

    limit: int
    seen: Seen
    here: Residency
    fleet: Sequence[View]
    coming: Callable[[int], Coming]
    completed: bool = False
    holes_elsewhere: bool = False
    holes_later: bool = False


@dataclass(frozen=True)
class Step:
    """Tokens from `lower` to `upper` that were lost to `cls`, and what says so."""

    cls: str
    upper: int
    lower: int
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass
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


class _Walk:
    """The way down: where it has got to, and the steps so far."""

    def __init__(self, top: int) -> None:
        self.at = top
        self.steps: list[Step] = []
        self.reasons: list[str] = []

    def down(self, cls: str, lower: int, **data: Any) -> None:
        if self.at > lower:
            self.steps.append(Step(cls, self.at, lower, data))
            self.at = lower


def explain(prompt: Prompt, scene: Scene) -> Explained:
    """Walk down the ladder for `prompt`."""
    here, chain, limit = scene.here, prompt.chain, scene.limit
    settings = here.settings
    walk = _Walk(prompt.tokens)
    walk.down(model.COLD, max(scene.seen.any_key, scene.seen.same_key))
    walk.down(model.KEY_DIFFERENCE, scene.seen.same_key)
    grid = _last_boundary(settings, walk.at, limit)
    if grid == 0 < walk.at:
        walk.reasons.append("below_minimum")
        walk.down(model.ALIGNMENT, 0)
    walk.down(model.TAIL, grid)

    hashed = len(chain) * settings.hash_block
    once = here.dense_prefix(chain, walk.at, ever=True)
    _registration(walk, scene)
    registered = walk.at
    local = here.dense_prefix(chain, walk.at)

    def holds(group: Group, position: int) -> bool:
        return here.holds(group, chain, position)

    completed = min(walk.at, furthest(settings, holds, limit, hashed)) if scene.completed else 0
    _residence(walk, scene, chain, max(local, completed), once)

    # A state of a sparse group can be no further on than what an earlier request had of the prompt.
    possible = min(hashed, max(0, scene.seen.same_key - settings.lookahead))

    def dense_only(group: Group, position: int) -> bool:
        return _dense_only(here, group, chain, position, possible)

    held = walk.at
    needed = completed if scene.completed else min(held, agree(settings, dense_only, limit, hashed))
    walk.down(model.SPECULATIVE_DROP, max(needed, min(held, _after_drop(settings, dense_only, limit, hashed))))
    if needed < walk.at:
        undropped = min(held, agree(settings, dense_only, limit, hashed, drop=False))
        walk.reasons.append("after_drop" if undropped > needed else "grid")
    walk.down(model.ALIGNMENT, needed)

    predicted = completed if scene.completed else min(needed, agree(settings, holds, limit, hashed))
    result = Explained(predicted, needed, walk.steps, [], max(needed, predicted))
    if predicted < needed:
        result.missing = find_missing(here, chain, needed)
        result.intact = min(registered, agree(settings, lambda g, p: here.kept(g, chain, p), limit, hashed))
        _states(walk, here, chain, result)
    result.steps = _certain(walk.steps, scene, prompt.tokens, once)
    result.reason = ",".join(dict.fromkeys(walk.reasons))
    return result


def _registration(walk: _Walk, scene: Scene) -> None:
    """Step down to what had been registered anywhere before the lookup."""
    at, settings = walk.at, scene.here.settings
    registered = max((view.prefix(at, ever=True) for view in scene.fleet), default=0)
    if registered >= at:
        return
    coming = scene.coming(registered)
    soon = max(registered, min(at, coming.reached))
    # A dense block is registered at its end only; a shorter gap than a block is no missing registration.
    block = max((group.block_size for group in settings.dense_groups), default=settings.hash_block)
    if scene.holes_later:
        walk.down(model.UNKNOWN, registered)
    elif at > soon:
        inside = at - soon < block and bool(settings.dense_groups)
        walk.reasons.append("inside_block" if inside else "never_registered")
        walk.down(model.ALIGNMENT if inside else model.NOT_MATERIALIZED, soon)
    walk.down(model.IN_FLIGHT, registered, producer=coming.producer, registered_at=coming.time)


def _residence(walk: _Walk, scene: Scene, chain: "array[int]", local: int, once: int) -> None:
    """Step down to what the dense groups of this replica hold."""
    at = walk.at
    anywhere = max((view.prefix(at) for view in scene.fleet), default=0)
    up = max(anywhere, local)
    if up < at:
        # What this replica once had, it lost itself; what lies above, somebody else did.
        others = [(view.residency, view.chain) for view in scene.fleet]
        _lost(walk, others, up, min(at, max(up, once)))
        _lost(walk, [(scene.here, chain)], up, up)
    if local < walk.at:
        holders = sorted({view.residency.replica for view in scene.fleet if view.prefix(walk.at) == min(walk.at, up)})
        walk.down(model.HELD_ELSEWHERE, max(local, min(once, walk.at)), replicas=holders)
        _lost(walk, [(scene.here, chain)], local, local)


def _lost(walk: _Walk, caches: Sequence[tuple[Residency, "array[int]"]], position: int, lower: int) -> None:
    """Step down to `lower` for what `caches` lost of the first dense block beyond `position`."""
    if walk.at <= lower:
        return
    losses: list[tuple[Loss, Residency, int]] = []
    for residency, chain in caches:
        unit = residency.settings.hash_block
        for group in residency.settings.dense_groups:
            index = (position // group.block_size + 1) * group.block_size // unit - 1
            if 0 <= index < len(chain) and (loss := residency.groups[group.index].lost.get(chain[index])):
                losses.append((loss, residency, group.index))
    reasons = {loss.reason for loss, _, _ in losses}
    last = max(losses, key=lambda each: each[0].time, default=None)
    data: dict[str, Any] = {"loss": last[0], "replica": last[1].replica} if last else {}
    data["groups"] = sorted({group for _, residency, group in losses if last and residency is last[1]})
    walk.down(model.RESET if reasons == {"reset"} else model.EVICTED, lower, **data)


def _states(walk: _Walk, here: Residency, chain: "array[int]", result: Explained) -> None:
    """Step down to the predicted hit: what became of the states at the boundary that was needed."""
    cls = state_class(result.missing)
    if result.intact > result.needed:
        # The prefix was shortened by a loss: at the boundary before it, every group had had what a hit needed.
        result.gone = find_missing(here, chain, result.intact, intact=True)
        sparse = [entry.loss for entry in result.gone if not entry.group.dense and entry.loss]
        cls = _last_loss(walk.steps)
        if sparse:
            cls = model.RESET if any(loss.reason == "reset" for loss in sparse) else model.CHECKPOINT_EVICTED
    loss = next((entry.loss for entry in (*result.gone, *result.missing) if entry.loss), None)
    walk.down(cls, result.predicted, **({"loss": loss, "replica": here.replica} if loss else {}))


def _last_loss(steps: Sequence[Step]) -> str:
    return next((step.cls for step in reversed(steps) if step.cls in (model.EVICTED, model.RESET)), model.EVICTED)


def _certain(steps: Sequence[Step], scene: Scene, tokens: int, once: int) -> list[Step]:
    """Return the steps, those `unknown` that evidence of another cache could have changed had it been there."""
    if not scene.holes_elsewhere:
        return list(steps)
    whole = scene.seen.same_key >= tokens
    found: list[Step] = []
    for step in steps:
        if step.lower >= once and whole and step.cls == model.TAIL:
            found.append(step)
            continue
        middle = min(max(once, step.lower), step.upper)
        if step.upper > middle:
            found.append(Step(model.UNKNOWN, step.upper, middle))
        if middle > step.lower:
            found.append(Step(step.cls, middle, step.lower, step.data))
    return found


def _last_boundary(settings: Settings, seen: int, limit: int) -> int:
    top = min(limit, seen - settings.lookahead)
    return max(top, 0) // settings.alignment * settings.alignment


def _dense_only(here: Residency, group: Group, chain: "array[int]", position: int, possible: int) -> bool:
    if group.dense:
        return here.holds(group, chain, position)
    if here.settings.dense_groups:
        return position <= possible
    return position <= here.dense_prefix(chain, possible)


def _after_drop(settings: Settings, holds: Callable[[Group, int], bool], limit: int, hashed: int) -> int:
    """Return how far the groups that drop for speculation reach after the drop, before any alignment."""
    reach = limit
    alone = len(settings.groups) == 1
    for group in settings.groups:
        if group.drops and (group.dense or settings.dense_groups):
            beyond = settings.block_beyond and not alone
            top = min(limit + drop_unit(settings, group), hashed) if beyond else limit
            matched = find(group, lambda p, g=group: holds(g, p), top, False, settings.alignment).matched  # type: ignore[misc]
            reach = min(reach, max(matched - min(settings.alignment, group.block_size), 0))
    return reach
