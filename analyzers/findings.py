"""Findings: what the losses of one kind have in common, and the flag that ends them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analyzers import model
from analyzers.fixes import fix_alignment, fix_cut, fix_evicted, fix_not_materialized, fix_routing, fix_shifted
from analyzers.model import Finding, LookupResult
from analyzers.settings import Settings
from analyzers.speed import Speed, total_seconds
from analyzers.wording import cause_of, counted

_REASONS_OF = {
    model.SHIFTED_BOUNDARY: ("speculation", "aligned_prompt", "shared_prefix", "held_prefix"),
    model.ALIGNMENT: ("below_minimum", "inside_block", "after_drop", "grid"),
    model.NOT_MATERIALIZED: ("never_registered",),
}


@dataclass(frozen=True)
class _Case:
    """The losses of one class and reason under one configuration; `worst` lost most (the earliest of equals)."""

    cls: str
    settings: Settings
    results: Sequence[LookupResult]
    worst: LookupResult

    @property
    def tokens(self) -> int:
        return sum(abs(result.lost[self.cls]) for result in self.results)


Fix = Callable[[_Case], str]


def findings(
    results: Sequence[LookupResult], settings: Sequence[Settings], known: Mapping[int, Speed]
) -> list[Finding]:
    """Return the findings on lost classes, one per class, reason and configuration.

    Args:
        results: one per request.
        settings: by life.
        known: speeds, by life.

    """
    index = {id(result): number for number, result in enumerate(results)}
    grouped: dict[tuple[Any, ...], list[LookupResult]] = {}
    for result in results:
        for cls in result.lost:
            if cls in _RULES:
                key = (cls, _main_reason(result, cls), settings[result.life])
                grouped.setdefault(key, []).append(result)
    found = []
    for (cls, _, setting), rows in grouped.items():
        worst = max(rows, key=lambda row: row.lost[cls])
        found.append(_finding(_Case(cls, setting, rows, worst), index[id(worst)], known))
    return found


def _main_reason(result: LookupResult, cls: str) -> str:
    reasons = _REASONS_OF.get(cls, ())
    return ",".join(reason for reason in result.reason.split(",") if reason in reasons)


def _finding(case: _Case, lookup: int, known: Mapping[int, Speed]) -> Finding:
    rule, headline, fix = _RULES[case.cls]
    if case.cls == model.ALIGNMENT and _main_reason(case.worst, case.cls) == "after_drop":
        rule, headline, fix = _CUT
    worst = case.worst
    replicas = sorted({row.replica for row in case.results})
    count = len(case.results)
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
    tokens: Counter[int] = Counter()
    for row in case.results:
        tokens[row.life] += abs(row.lost[case.cls])
    which = f"{count} lookup{'s' if count > 1 else ''}"
    summary = f"{headline}: {counted(case.tokens)} in {which}"
    cause = cause_of(case.cls, worst.lost, worst.needed_boundary, worst.groups, worst.reason, worst.facts)
    severity: Literal["error", "warning", "info"] = "warning"
    if case.cls == model.UNEXPLAINED:
        severity = "error"
    elif case.cls in (model.UNKNOWN, model.ALIGNMENT) and rule != _CUT[0]:
        severity = "info"
    seconds = total_seconds(tokens, known)
    return Finding(rule, summary, evidence, fix(case), case.tokens, lookup, cause, severity, seconds, replicas)


def _constant(text: str) -> Fix:
    return lambda case: text


def _of_worst(fix: Callable[[Settings, LookupResult], str]) -> Fix:
    return lambda case: fix(case.settings, case.worst)


_CUT: tuple[str, str, Fix] = (
    "speculation-cuts-hits", "what speculation drops costs more than a block: the grid takes the rest",
    _of_worst(fix_cut),
)  # fmt: skip

_RULES: dict[str, tuple[str, str, Fix]] = {
    model.SHIFTED_BOUNDARY: (
        "shifted-boundary", "the retention mask refused the state that a hit needed", _of_worst(fix_shifted)
    ),
    model.NOT_MATERIALIZED: (
        "not-materialized", "no state was ever made where a hit needed one", 
        lambda case: fix_not_materialized(case.settings, case.worst, case.results)
    ),
    model.CHECKPOINT_EVICTED: (
        "checkpoint-evicted", "the state that a hit needed had been evicted", _of_worst(fix_evicted)
    ),
    model.EVICTED: ("evicted", "the prefix had been evicted", _of_worst(fix_evicted)),
    model.RESET: ("reset", "the cache had been cleared", _constant("avoid restarts and resets, or warm the cache up")),
    model.IN_FLIGHT: (
        "in-flight", "the prefix was still being computed", _constant(
            "send the first request of a prefix ahead of the others, or let the router hold them back for a moment"
        ),
    ),
    model.HELD_ELSEWHERE: (
        "held-elsewhere", "another replica held the prefix", lambda case: fix_routing(case.results)
    ),
    model.ALIGNMENT: ("alignment", "a hit could not end where the shared prefix ends", _of_worst(fix_alignment)),
    model.KEY_DIFFERENCE: (
        "key-difference", "the tokens were cached under another key", _constant(
            "use the same LoRA adapter and the same cache salt where sharing is allowed"
        ),
    ),
    model.DISCARDED: (
        "discarded-after-lookup", "admission threw a part of the hit away", _constant("no setting is known to help")
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
