"""The ladder: how every prompt token of a lookup gets its class.

Boundaries fall from `b0`, the prompt, to `b7`, the predicted hit; each step's difference goes to one class, so the hit
and the classes always add up to the prompt. Every boundary is predicted from what was stored and evicted before, from
the prompts and the settings; the lookup's own result is compared at the end only.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzers import model
from analyzers.finders import agree, drop_unit, find, required_positions
from analyzers.prompts import Prompt
from analyzers.residency import Loss, Refusal, Residency
from analyzers.settings import Group, Settings


@dataclass(frozen=True)
class Seen:
    """How much of a prompt earlier requests had: under the same key, and whatever the key. Tokens."""

    same_key: int
    any_key: int


@dataclass(frozen=True)
class Missing:
    """A group without the state at the needed boundary, and what became of it."""

    group: Group
    state: model.State
    refusal: Refusal | None
    loss: Loss | None


@dataclass
class Explained:
    """The ladder of one lookup: `lost` sums to prompt minus `hit` of the prediction."""

    predicted: int
    needed: int
    lost: dict[str, int]
    missing: Sequence[Missing]
    reason: str = ""
    held: int = 0


def explain(
    prompt: Prompt,
    limit: int,
    seen: Seen,
    here: Residency,
    fleet: Sequence[Residency],
    coming: Callable[[int], int],
) -> Explained:
    """Walk down the ladder.

    Args:
        prompt: the lookup's tokens.
        limit: the longest hit that vLLM allowed, tokens.
        seen: what earlier requests had of it.
        here: the replica's cache at the lookup.
        fleet: all caches that could have held it, `here` included.
        coming: how far beyond a position (tokens) producers that were at work then registered the prompt afterwards.

    """
    settings, chain = here.settings, prompt.chain
    lost: dict[str, int] = {}

    def lose(cls: str, upper: int, lower: int) -> int:
        if upper > lower:
            lost[cls] = lost.get(cls, 0) + upper - lower
        return min(upper, lower)

    reasons: list[str] = []
    at = lose(model.COLD, prompt.tokens, max(seen.any_key, seen.same_key))
    at = lose(model.KEY_DIFFERENCE, at, seen.same_key)
    grid = _last_boundary(settings, at, limit)
    if grid == 0 < at:
        reasons.append("below_minimum")
        at = lose(model.ALIGNMENT, at, 0)
    else:
        at = lose(model.TAIL, at, grid)

    registered = max((r.dense_prefix(chain, at, ever=True) for r in fleet), default=0)
    if registered < at:
        soon = max(registered, min(at, coming(registered)))
        never = at - soon
        # A dense block is registered at its end only; a shorter gap than a block is no missing registration.
        block = max((group.block_size for group in settings.dense_groups), default=settings.hash_block)
        if never:
            inside = never < block and bool(settings.dense_groups)
            reasons.append("inside_block" if inside else "never_registered")
            at = lose(model.ALIGNMENT if inside else model.NOT_MATERIALIZED, at, soon)
        at = lose(model.IN_FLIGHT, at, registered)

    anywhere = max((r.dense_prefix(chain, at) for r in fleet), default=0)
    local, once = here.dense_prefix(chain, at), here.dense_prefix(chain, at, ever=True)
    at = lose(_loss_class(fleet, chain, anywhere), at, max(anywhere, local))
    if local < at:
        at = lose(model.HELD_ELSEWHERE, at, max(local, min(once, at)))
        at = lose(_loss_class([here], chain, local), at, local)
    held = at

    hashed = len(chain) * settings.hash_block
    needed = min(at, agree(settings, lambda g, p: _dense_only(here, g, chain, p, hashed), limit, hashed))
    dropped_to = _after_drop(settings, here, chain, limit, hashed)
    at = lose(model.SPECULATIVE_DROP, at, max(needed, min(at, dropped_to)))
    at = lose(model.ALIGNMENT, at, needed)
    if needed < held and at == needed and model.ALIGNMENT in lost and "below_minimum" not in reasons:
        reasons.append("grid")

    predicted = min(at, agree(settings, lambda g, p: here.holds(g, chain, p), limit, hashed))
    missing = [] if predicted >= needed else find_missing(here, chain, needed)
    if predicted < needed:
        lose(_state_class(missing), needed, predicted)
    return Explained(predicted, needed, lost, missing, ",".join(dict.fromkeys(reasons)), held)


def _last_boundary(settings: Settings, seen: int, limit: int) -> int:
    top = min(limit, seen - settings.lookahead)
    return max(top, 0) // settings.alignment * settings.alignment


def _dense_only(here: Residency, group: Group, chain: "array[int]", position: int, hashed: int) -> bool:
    if group.dense:
        return here.holds(group, chain, position)
    if here.settings.dense_groups:
        return position <= hashed
    return position <= here.dense_prefix(chain, hashed)


def _after_drop(settings: Settings, here: Residency, chain: "array[int]", limit: int, hashed: int) -> int:
    """Return how far the groups that drop for speculation reach after the drop, before any alignment."""
    reach = limit
    for group in settings.groups:
        if group.drops and group.dense:
            unit = drop_unit(settings, group)
            alone = len(settings.groups) == 1
            top = min(limit + unit, hashed) if settings.block_beyond and not alone else limit
            matched = find(group, lambda p, g=group: here.holds(g, chain, p), top, False, settings.alignment).matched  # type: ignore[misc]
            reach = min(reach, max(matched - min(settings.alignment, group.block_size), 0))
    return reach


def _loss_class(residencies: Sequence[Residency], chain: "array[int]", position: int) -> str:
    """Return whether the first dense block beyond `position` was evicted or went with a reset."""
    reasons = set()
    for residency in residencies:
        for group in residency.settings.dense_groups:
            index = (position // group.block_size + 1) * group.block_size // residency.settings.hash_block - 1
            if 0 <= index < len(chain) and (loss := residency.groups[group.index].lost.get(chain[index])):
                reasons.add(loss.reason)
    return model.RESET if reasons == {"reset"} else model.EVICTED


def find_missing(here: Residency, chain: "array[int]", boundary: int) -> list[Missing]:
    """Return the groups that lack a state that a hit at `boundary` needs, and what became of it."""
    unit = here.settings.hash_block
    found = []
    for group in here.settings.sparse_groups:
        residency = here.groups[group.index]
        lacking = [
            chain[p // unit - 1] if p // unit <= len(chain) else 0
            for p in required_positions(group, boundary)
            if not here.holds(group, chain, p)
        ]
        if not lacking:
            continue
        # Of a run of blocks the one closest to the boundary speaks for all.
        lacking.reverse()
        refusals = [r for identity in lacking if (r := residency.refused.get(identity))]
        never = next((r for r in refusals if r.state == "not_materialized"), None)
        masked = next((r for r in refusals if r.state == "masked"), None)
        loss = next((x for identity in lacking if (x := residency.lost.get(identity))), None)
        if never or not (masked or loss):
            found.append(Missing(group, "not_materialized", never, None))
        elif masked:
            found.append(Missing(group, "masked", masked, None))
        else:
            found.append(Missing(group, "evicted", None, loss))
    return found


def _state_class(missing: Sequence[Missing]) -> str:
    """Return the class of a loss to the groups that lack the state: the deepest cause of any of them."""
    states = {entry.state for entry in missing}
    if "not_materialized" in states:
        return model.NOT_MATERIALIZED
    if "masked" in states:
        return model.SHIFTED_BOUNDARY
    if any(entry.loss and entry.loss.reason == "reset" for entry in missing):
        return model.RESET
    return model.CHECKPOINT_EVICTED if states else model.ALIGNMENT
