"""Which groups lack the state that a hit needs, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers import model
from analyzers.finders import required_positions
from analyzers.residency import Loss, Refusal
from analyzers.settings import Group
from analyzers.views import View


@dataclass(frozen=True, slots=True)
class Missing:
    """A group without the state at a boundary, and what became of it."""

    group: Group
    state: model.State
    refusal: Refusal | None
    loss: Loss | None


def find_missing(here: View, boundary: int, intact: bool = False) -> list[Missing]:
    """Return the groups that lack a state that a hit at `boundary` (tokens) needs, and what became of it.

    With `intact` a state that was there and went counts as lost, whatever a later request did without it.
    """
    unit, chain, settings = here.unit, here.chain, here.residency.settings
    found = []
    for group in settings.groups:
        if group.index not in settings.asked or (group.dense and here.leading(group) >= boundary // group.block_size):
            continue
        residency = here.residency.groups[group.index]
        lacking = [
            chain[p // unit - 1] if p // unit <= len(chain) else 0
            for p in required_positions(group, boundary)
            if not here.holds(group, p)
        ]
        if not lacking:
            continue
        # Of a run of blocks the one closest to the boundary speaks for all.
        lacking.reverse()
        refusals = [r for identity in lacking if (r := here.residency.refusal(group.index, identity))]
        never = next((r for r in refusals if r.state == "not_materialized"), None)
        masked = next((r for r in refusals if r.state == "masked"), None)
        loss = next((x for identity in lacking if (x := residency.loss(identity))), None)
        if intact and loss:
            never = masked = None
        if group.dense:
            # A dense block that is not there was lost, or lies beyond what anybody registered.
            state: model.State = "evicted" if loss else "not_materialized"
            found.append(Missing(group, state, None, loss))
        elif never or not (masked or loss):
            found.append(Missing(group, "not_materialized", never, None))
        elif masked:
            found.append(Missing(group, "masked", masked, None))
        else:
            found.append(Missing(group, "evicted", None, loss))
    return found


def state_class(missing: Sequence[Missing]) -> str:
    """Return the class of a loss to the groups that lack the state: the deepest cause of any of them."""
    states = {entry.state for entry in missing}
    losses = [entry.loss for entry in missing if entry.loss]
    if "not_materialized" in states:
        return model.NOT_MATERIALIZED
    if "masked" in states:
        return model.SHIFTED_BOUNDARY
    if any(loss.reason == "reset" for loss in losses):
        return model.RESET
    if losses and all(loss.reason == "replaced" for loss in losses):
        # The request that had the state there registered it anew further on: it was kept, at another position.
        return model.SHIFTED_BOUNDARY
    return model.CHECKPOINT_EVICTED if states else model.ALIGNMENT
