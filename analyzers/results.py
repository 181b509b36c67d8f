"""From replayed lookups to results: one row per request, its tokens classed, its groups at the needed boundary."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import sub

import polars as pl

from analyzers import model
from analyzers.facts import facts_of
from analyzers.ladder import Explained, Step
from analyzers.missing import Missing
from analyzers.model import GroupState, LookupResult
from analyzers.replay import Replayed
from analyzers.wording import cause_of, main_class

SHOWN_POSITIONS = 16
HELD_LESS = (model.EVICTED, model.RESET, model.HELD_ELSEWHERE, model.IN_FLIGHT)
"""Losses that leave less of the prefix than the request that computed it had, and so move the needed boundary."""

_ORDER = {cls: place for place, cls in enumerate(model.CLASSES)}
_STAGES = {
    cls: stage
    for stage, classes in enumerate((
        (model.COLD, model.KEY_DIFFERENCE),
        (model.TAIL, model.IN_FLIGHT, model.EVICTED, model.RESET, model.UNKNOWN),
        (model.HELD_ELSEWHERE,),
        (model.SPECULATIVE_DROP, model.ALIGNMENT, model.NOT_MATERIALIZED, model.SHIFTED_BOUNDARY,
         model.CHECKPOINT_EVICTED),
    ))
    for cls in classes
}  # fmt: skip
"""At which stage of the funnel the tokens of a class fall out."""

_NEVER_ASKED = (None, None)

Passes = Mapping[tuple[int, str], Mapping[int, tuple[int | None, int | None]]]
"""By life and span id of a lookup, and by group: what it was asked for first, and its hit. Tokens."""


def passes_of(groups: pl.DataFrame) -> Passes:
    """Return what `Capture.groups` says of the groups in each lookup."""
    asked = pl.col("asked_tokens").list.first()
    found: dict[tuple[int, str], dict[int, tuple[int | None, int | None]]] = {}
    for life, span, group, *said in groups.select("life", "parent_span_id", "group", asked, "hit_tokens").iter_rows():
        found.setdefault((life, span), {})[group] = (said[0], said[1])
    return found


def lookup_results(
    replayed: Sequence[Replayed], lives: Sequence[model.Life], passes: Passes, families: Mapping[tuple[int, str], str]
) -> list[LookupResult]:
    """Return one result per request and life: of its first admitted lookup, else of its last.

    Later lookups of a request (it was preempted) and those that led to nothing are attempts of the same request.

    Args:
        replayed: the lookups, in order.
        lives: the replicas' lives.
        passes: of the groups in each lookup.
        families: by life and request id.

    """
    attempts: dict[tuple[int, str], int] = {}
    chosen: dict[tuple[int, str], Replayed] = {}
    for one in replayed:
        name = (one.row["life"], one.row["request_id"])
        attempts[name] = attempts.get(name, 0) + one.row["attempts"]
        if name not in chosen or not chosen[name].row["admitted"]:
            chosen[name] = one
    return [
        _result(one, lives[name[0]], attempts[name], passes, replayed, families[name]) for name, one in chosen.items()
    ]


def _result(
    one: Replayed,
    life: model.Life,
    attempts: int,
    passes: Passes,
    replayed: Sequence[Replayed],
    family: str,
) -> LookupResult:
    row, explained = one.row, one.explained
    prompt, hit = row["prompt_tokens"], row["hit_tokens"]
    lost, predicted = _lost(one)
    discarded = row["discarded_tokens"]
    if row["admitted"] and row["admitted_tokens"] is not None:
        discarded = max(discarded, hit - min(hit, row["admitted_tokens"]))
    used = hit - min(hit, discarded)
    if used < hit:
        lost[model.DISCARDED] = hit - used
    needed = explained.needed if explained else hit
    states = _group_states(one, needed, passes)
    missing = explained.missing if explained and explained.predicted < explained.needed else ()
    reason, main = _reason(one, missing), main_class(lost)
    facts = facts_of(one, replayed)
    elsewhere = one.elsewhere
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
        lost={cls: lost[cls] for cls in sorted(lost, key=_ORDER.__getitem__) if lost[cls]},
        limiting_groups=sorted(entry.group.index for entry in missing),
        groups=states,
        reason=reason,
        cause=cause_of(main, lost, needed, states, reason, facts) if main else "",
        producer=next((entry.refusal.request for entry in missing if entry.refusal), None),
        intact_boundary=explained.intact if explained else None,
        facts=facts,
        funnel=_funnel(one, used, lost.get(model.EXTERNAL, 0)),
        best_hit_tokens=max(elsewhere.best, used) if elsewhere else None,
        best_replicas=elsewhere.replicas if elsewhere else (),
        previous_turn_hit_tokens=elsewhere.previous_turn if elsewhere else None,
        family=family,
        ladder=[(step.cls, step.upper, step.lower) for step in explained.steps] if explained else [],
    )


def _lost(one: Replayed) -> tuple[dict[str, int], int]:
    """Return the tokens per class, which sum up to what the lookup did not hit, and the predicted hit."""
    row, explained = one.row, one.explained
    prompt, hit = row["prompt_tokens"], row["hit_tokens"]
    external = min(row["external_tokens"], prompt - hit)
    if row["skipped"] or not one.settings.prefix_caching:
        steps, predicted = [Step(model.SKIPPED, prompt, hit)], hit
    elif explained is None:
        steps, predicted = [Step(model.UNKNOWN, prompt, hit)], hit
    else:
        steps, predicted = list(explained.steps), explained.predicted
        if predicted > hit:
            steps.append(Step(model.UNEXPLAINED, predicted, hit))
    lost = _sum(steps, hit, hit + external)
    if predicted < hit:
        # More was hit than the evidence says: the steps between are no loss.
        lost[model.UNEXPLAINED] = lost.get(model.UNEXPLAINED, 0) + predicted - hit
    return lost, predicted


def _sum(steps: Iterable[Step], low: int, high: int) -> dict[str, int]:
    """Return the tokens of `steps` per class; what lies from `low` to `high` a KV connector brought."""
    lost: dict[str, int] = {}
    if low == high:
        for cls, upper, lower, _ in steps:
            lost[cls] = lost.get(cls, 0) + upper - lower
        return lost
    for step in steps:
        brought = max(0, min(step.upper, high) - max(step.lower, low))
        for cls, tokens in ((model.EXTERNAL, brought), (step.cls, step.upper - step.lower - brought)):
            if tokens:
                lost[cls] = lost.get(cls, 0) + tokens
    return lost


def _funnel(one: Replayed, used: int, external: int) -> tuple[int, ...] | None:
    """Return the tokens at each stage of `model.FUNNEL`; None where the ladder of the lookup is not known."""
    if one.explained is None:
        return None
    falls = [0, 0, 0, 0]
    for step in one.explained.steps:
        if (stage := _STAGES.get(step.cls)) is not None:
            falls[stage] += step.upper - step.lower
    return (*accumulate(falls, sub, initial=one.row["prompt_tokens"]), used + external)


def _group_states(one: Replayed, needed: int, passes: Passes) -> list[GroupState]:
    missing: dict[int, Missing] = {}
    if one.explained and one.explained.missing:
        missing = {entry.group.index: entry for entry in one.explained.missing}
    # Of a group that the lookup does not ask nothing is needed: vLLM rebuilds what it holds.
    asked = one.settings.asked if one.explained and needed else frozenset()
    said = passes.get((one.row["life"], one.row["span_id"]), {})
    residency = one.residency
    states = []
    for group, below, above in zip(one.settings.groups, residency.below, residency.above, strict=True):
        number = group.index
        first, hit = said.get(number, _NEVER_ASKED)
        # Without a boundary that a hit could have had, there is nothing that a group could lack.
        state: model.State = "stored" if number in asked else "unknown"
        one_state = GroupState(number, group.kind, group.block_size, first, hit or 0, below, above, state)
        if entry := missing.get(number):
            one_state.state = entry.state
            one_state.wanted = tuple(residency.wanted.get(number, ()))[-SHOWN_POSITIONS:]
            one_state.unmade = tuple(residency.unmade.get(number, ()))[-SHOWN_POSITIONS:]
            if entry.refusal:
                one_state.chunk_start, one_state.chunk_end = entry.refusal.chunk_start, entry.refusal.chunk_end
        states.append(one_state)
    return states


def _reason(one: Replayed, missing: Sequence[Missing]) -> str:
    """Return why tokens were lost to the grid, and why the boundary shifted, separated by commas."""
    if not one.explained:
        return ""
    return ",".join(filter(None, (one.explained.reason, _shift_reason(one, one.explained, missing))))


def _shift_reason(one: Replayed, explained: Explained, missing: Sequence[Missing]) -> str:
    """Return why the needed boundary is another than the request that computed the prefix left its states at.

    "" where no state was refused or left out, or nothing tells why.
    """
    refused = [entry for entry in missing if entry.refusal]
    if not refused:
        return ""
    if any(step.cls in HELD_LESS for step in explained.steps):
        return "held_prefix"
    if not one.holds_producer:
        return "shared_prefix"
    if any(entry.loss and entry.loss.reason == "replaced" for entry in missing):
        return "replaced"
    if all(entry.group.flagged for entry in refused):
        return "draft_group"
    if any(group.drops for group in one.settings.groups):
        return "speculation"
    # The producer's prompt ended on a boundary, and the last token of a resend has to be computed.
    return "aligned_prompt" if one.producer_tokens % one.settings.alignment == 0 else ""
