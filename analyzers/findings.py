"""Findings: what the losses of one kind have in common, and the flag that ends them."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from analyzers import model
from analyzers.changes import Fix
from analyzers.fixes import (
    Case,
    fix_alignment,
    fix_cut,
    fix_evicted,
    fix_key,
    fix_not_materialized,
    fix_routing,
    fix_shifted,
)
from analyzers.intervals import Pool, prompts_of
from analyzers.model import Finding, LookupResult
from analyzers.settings import Settings
from analyzers.speed import Speed, total_seconds
from analyzers.wording import cause_of, counted, lookups

_REASONS_OF = {
    model.SHIFTED_BOUNDARY: ("speculation", "aligned_prompt", "shared_prefix", "held_prefix"),
    model.ALIGNMENT: ("below_minimum", "inside_block", "after_drop", "grid"),
    model.NOT_MATERIALIZED: ("never_registered",),
}

Fixer = Callable[[Case], Fix]


def findings(
    results: Sequence[LookupResult],
    settings: Sequence[Settings],
    known: Mapping[int, Speed],
    pools: Mapping[int, Pool],
) -> list[Finding]:
    """Return the findings on lost classes, one per class, reason and configuration.

    Args:
        results: one per request.
        settings: by life.
        known: speeds, by life.
        pools: what the block pools had left, by life.

    """
    numbers: dict[Settings, int] = {}
    alike = [numbers.setdefault(each, len(numbers)) for each in settings]
    grouped: dict[tuple[str, str, int], list[int]] = {}
    for index, result in enumerate(results):
        for cls in result.lost:
            if cls in _RULES:
                key = (cls, _main_reason(result, cls), alike[result.life])
                grouped.setdefault(key, []).append(index)
    found = []
    prompts = prompts_of(results)
    for (cls, _, number), indexes in grouped.items():
        rows = [results[index] for index in indexes]
        lost = [row.lost[cls] for row in rows]
        worst = lost.index(max(lost))
        own = {life: pool for life, pool in pools.items() if alike[life] == number}
        case = Case(cls, settings[rows[0].life], rows, rows[worst], prompts, own)
        found.append(_finding(case, indexes[worst], known))
    return found


def _main_reason(result: LookupResult, cls: str) -> str:
    if cls == model.CHECKPOINT_EVICTED:
        return "state" if any(group.state == "evicted" for group in result.groups) else "prefix"
    return _reason_of(cls, result.reason) if result.reason else ""


@lru_cache(maxsize=1 << 10)
def _reason_of(cls: str, reason: str) -> str:
    reasons = _REASONS_OF.get(cls, ())
    return ",".join(each for each in reason.split(",") if each in reasons)


def _finding(case: Case, lookup: int, known: Mapping[int, Speed]) -> Finding:
    rule, headline, fixer = _RULES[case.cls]
    if case.cls == model.ALIGNMENT and _main_reason(case.worst, case.cls) == "after_drop":
        rule, headline, fixer = _CUT
    if case.cls == model.CHECKPOINT_EVICTED and _main_reason(case.worst, case.cls) == "prefix":
        headline = "the prefix was shortened by an eviction to where a group has no state"
    worst = case.worst
    replicas = sorted({row.replica for row in case.rows})
    count = len(case.rows)
    evidence: dict[str, Any] = {
        "request_id": worst.request_id,
        "replica": worst.replica,
        "replicas": replicas,
        "lookups": count,
        "prompt_tokens": worst.prompt_tokens,
        "hit_tokens": worst.hit_tokens,
        "needed_boundary": worst.needed_boundary,
        "limiting_groups": list(worst.limiting_groups),
        "reason": worst.reason,
        "producer": worst.producer,
        "vllm_version": case.settings.version,
        "model": case.settings.model,
        "retention_interval": case.settings.retention,
        "max_num_batched_tokens": case.settings.max_batched_tokens,
        "facts": [fact.says for fact in worst.facts if fact.cls == case.cls],
        "also": [fact.says for fact in worst.facts if fact.data.get("also")],
    }
    tokens: dict[int, int] = {}
    for row in case.rows:
        tokens[row.life] = tokens.get(row.life, 0) + abs(row.lost[case.cls])
    summary = f"{headline}: {counted(case.tokens)} in {lookups(count)}"
    cause = cause_of(case.cls, worst.lost, worst.needed_boundary, worst.groups, worst.reason, worst.facts)
    severity: Literal["error", "warning", "info"] = "warning"
    if case.cls == model.UNEXPLAINED:
        severity = "error"
    elif case.cls in (model.UNKNOWN, model.ALIGNMENT) and rule != _CUT[0]:
        severity = "info"
    seconds = total_seconds(tokens, known)
    fix = fixer(case)
    return Finding(
        rule, summary, evidence, fix.says, case.tokens, lookup, cause, severity, seconds, replicas, fix.regained,
        fix.change,
    )  # fmt: skip


def _constant(says: str, regained: int | None = None) -> Fixer:
    return lambda case: Fix(says, regained=regained)


_CUT: tuple[str, str, Fixer] = (
    "speculation-cuts-hits", "what speculation drops costs more than a block: the grid takes the rest",
    fix_cut,
)  # fmt: skip

_RULES: dict[str, tuple[str, str, Fixer]] = {
    model.SHIFTED_BOUNDARY: (
        "shifted-boundary", "the retention mask refused the state that a hit needed", fix_shifted
    ),
    model.NOT_MATERIALIZED: (
        "not-materialized", "no state was ever made where a hit needed one", fix_not_materialized
    ),
    model.CHECKPOINT_EVICTED: (
        "checkpoint-evicted", "the state that a hit needed had been evicted", fix_evicted
    ),
    model.EVICTED: ("evicted", "the prefix had been evicted", fix_evicted),
    model.RESET: ("reset", "the cache had been cleared", _constant("avoid restarts and resets, or warm the cache up")),
    model.IN_FLIGHT: (
        "in-flight", "the prefix was still being computed", _constant(
            "send the first request of a prefix ahead of the others, or let the router hold them back for a moment"
        ),
    ),
    model.HELD_ELSEWHERE: (
        "held-elsewhere", "another replica held the prefix", fix_routing
    ),
    model.ALIGNMENT: ("alignment", "a hit could not end where the shared prefix ends", fix_alignment),
    model.KEY_DIFFERENCE: (
        "key-difference", "the tokens were cached under another key", fix_key
    ),
    model.DISCARDED: (
        "discarded-after-lookup", "admission threw a part of the hit away", _constant("no setting is known to help", 0)
    ),
    model.UNEXPLAINED: (
        "unexplained", "the evidence predicts another hit than vLLM's", _constant(
            "please report it with the capture: the analyzer's rules do not fit this version or configuration"
        ),
    ),
    model.UNKNOWN: (
        "missing-records", "records are missing", _constant(
            "take the capture from the start of the replica, unsampled; the sidecar's log says what it dropped"
        ),
    ),
}  # fmt: skip

RULES = (_CUT[0], *(rule for rule, _, _ in _RULES.values()))
"""The names of the rules on lost classes."""
