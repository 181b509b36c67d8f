"""From replayed lookups to results: one row per request, its tokens classed, its groups at the needed boundary."""

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers import model
from analyzers.ladder import Missing
from analyzers.model import GroupState, LookupResult
from analyzers.replay import Replayed
from analyzers.wording import cause_of

SHOWN_POSITIONS = 16
COMMON_STEP = 256
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
    states = _group_states(one, needed, passes, lost)
    missing = explained.missing if explained and explained.predicted < explained.needed else ()
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
        reason=_reason(one, missing),
        cause=cause_of(lost, needed, states, _reason(one, missing)),
        producer=next((entry.refusal.request for entry in missing if entry.refusal), None),
    )


def _group_states(
    one: Replayed, needed: int, passes: Mapping[tuple[int, str, int], Mapping[str, Any]], lost: Mapping[str, int]
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
        state: model.State = "stored" if known and needed else "unknown"
        if entry:
            state = entry.state
        elif known and not needed:
            state = "stored" if below is not None else "not_materialized"
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
    """Return why the boundary shifted: what the producer's mask wanted against what this request needed."""
    if not one.explained:
        return ""
    if not any(entry.state == "masked" for entry in missing) or any(
        entry.state == "not_materialized" for entry in missing
    ):
        return one.explained.reason
    if any(one.explained.lost.get(cls) for cls in HELD_LESS):
        return "held_prefix"
    # What is shared is known to the last position that both prompts name, on the common grid of 256 tokens.
    if one.shared < one.producer_tokens // COMMON_STEP * COMMON_STEP:
        return "shared_prefix"
    return "speculation" if any(group.drops for group in one.settings.groups) else "aligned_prompt"
