"""From replayed lookups to results: one row per request, its tokens classed, its groups at the needed boundary."""

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers import model
from analyzers.ladder import Explained, Missing
from analyzers.model import GroupState, LookupResult
from analyzers.replay import Replayed
from analyzers.wording import cause_of, main_class

SHOWN_POSITIONS = 16
HELD_LESS = (model.EVICTED, model.RESET, model.HELD_ELSEWHERE, model.IN_FLIGHT)
"""Losses that leave less of the prefix than the request that computed it had, and so move the needed boundary."""


def lookup_results(
    replayed: Sequence[Replayed], lives: Sequence[model.Life], passes: Mapping[tuple[int, str, int], Mapping[str, Any]]
) -> list[LookupResult]:
    """Return one result per request and life: of its first admitted lookup, else of its last.

    Later lookups of a request (it was preempted) and those that led to nothing are attempts of the same request.

    Args:
        replayed: the lookups, in order.
        lives: the replicas' lives.
        passes: rows of `Capture.groups` by (life, span id of the lookup, group).

    """
    attempts: dict[tuple[int, str], int] = {}
    chosen: dict[tuple[int, str], Replayed] = {}
    for one in replayed:
        name = (one.row["life"], one.row["request_id"])
        attempts[name] = attempts.get(name, 0) + one.row["attempts"]
        if name not in chosen or not chosen[name].row["admitted"]:
            chosen[name] = one
    return [_result(one, lives[name[0]], attempts[name], passes) for name, one in chosen.items()]


def _result(
    one: Replayed, life: model.Life, attempts: int, passes: Mapping[tuple[int, str, int], Mapping[str, Any]]
) -> LookupResult:
    row, explained = one.row, one.explained
    prompt, hit = row["prompt_tokens"], row["hit_tokens"]
    used = min(hit, row["admitted_tokens"]) if row["admitted"] and row["admitted_tokens"] is not None else hit
    lost: dict[str, int] = {}
    predicted, needed = hit, hit
    if row["skipped"] or not one.settings.prefix_caching:
        lost = {model.SKIPPED: prompt - hit}
    elif explained is None:
        lost = {model.UNKNOWN: prompt - hit}
    else:
        predicted, needed = explained.predicted, explained.needed
        lost = dict(explained.lost)
        if predicted != hit:
            lost[model.UNEXPLAINED] = predicted - hit
    if used < hit:
        lost[model.DISCARDED] = hit - used
    states = _group_states(one, needed, passes)
    missing = explained.missing if explained and explained.predicted < explained.needed else ()
    reason, main = _reason(one, missing), main_class(lost)
    return LookupResult(
        request_id=row["request_id"],
        replica=life.replica,
        life=life.index,
        time=row["start"],
        attempts=attempts,
        prompt_tokens=prompt,
        hit_tokens=used,
        predicted_hit_tokens=predicted,
        needed_boundary=needed,
        lost={cls: lost[cls] for cls in model.CLASSES if lost.get(cls)},
        limiting_groups=sorted(entry.group.index for entry in missing),
        groups=states,
        reason=reason,
        cause=cause_of(main, lost, needed, states, reason) if main else "",
        producer=next((entry.refusal.request for entry in missing if entry.refusal), None),
    )


def _group_states(
    one: Replayed, needed: int, passes: Mapping[tuple[int, str, int], Mapping[str, Any]]
) -> list[GroupState]:
    missing: dict[int, Missing] = {}
    if one.explained:
        missing = {entry.group.index: entry for entry in one.explained.missing}
    known = one.explained is not None
    states = []
    for group in one.settings.groups:
        seen = passes.get((one.row["life"], one.row["span_id"], group.index), {})
        entry = missing.get(group.index)
        below, above = one.residency.below[group.index], one.residency.above[group.index]
        # Without a boundary that a hit could have had, there is nothing that a group could lack.
        state: model.State = "stored" if known and needed else "unknown"
        if entry:
            state = entry.state
        states.append(
            GroupState(
                group=group.index,
                kind=group.kind,
                block_size=group.block_size,
                asked_tokens=seen["asked_tokens"][0] if seen.get("asked_tokens") else None,
                hit_tokens=seen.get("hit_tokens") or 0,
                stored_below=below,
                stored_above=above,
                state=state,
                chunk_end=entry.refusal.chunk_end if entry and entry.refusal else None,
                wanted=tuple(one.residency.wanted.get(group.index, ()))[-SHOWN_POSITIONS:],
                unmade=tuple(one.residency.unmade.get(group.index, ()))[-SHOWN_POSITIONS:],
            )
        )
    return states


def _reason(one: Replayed, missing: Sequence[Missing]) -> str:
    """Return why tokens were lost to the grid, and why the boundary shifted, separated by commas."""
    if not one.explained:
        return ""
    return ",".join(filter(None, (one.explained.reason, _shift_reason(one, one.explained, missing))))


def _shift_reason(one: Replayed, explained: Explained, missing: Sequence[Missing]) -> str:
    """Return what the producer's mask wanted against what this request needed; "" where no boundary shifted."""
    if not any(entry.state == "masked" for entry in missing) or any(
        entry.state == "not_materialized" for entry in missing
    ):
        return ""
    if any(explained.lost.get(cls) for cls in HELD_LESS):
        return "held_prefix"
    if not one.holds_producer:
        return "shared_prefix"
    if not any(position > explained.needed for wanted in one.residency.wanted.values() for position in wanted):
        return ""
    return "speculation" if any(group.drops for group in one.settings.groups) else "aligned_prompt"
