"""Findings: what the losses of one kind have in common, and the flag that ends them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers import model
from analyzers.finders import required_positions
from analyzers.model import Finding, LookupResult
from analyzers.settings import Group, Settings
from analyzers.wording import number
from otel_cache.semconv import names

RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
RETENTION_FLAG = "--prefix-cache-retention-interval"


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


def findings(results: Sequence[LookupResult], settings: Sequence[Settings]) -> list[Finding]:
    """Return the findings of a capture, the costliest first.

    Args:
        results: one per request.
        settings: by life.

    """
    grouped: dict[tuple[Any, ...], list[LookupResult]] = {}
    for result in results:
        for cls in result.lost:
            if cls in _RULES:
                key = (cls, _main_reason(result, cls), settings[result.life])
                grouped.setdefault(key, []).append(result)
    found = []
    for (cls, _, setting), rows in grouped.items():
        worst = max(rows, key=lambda row: row.lost[cls])
        case = _Case(cls, setting, rows, worst)
        found.append(_finding(case, list(results).index(worst)))
    return sorted(found, key=lambda finding: (-finding.tokens_lost, finding.rule, finding.summary))


def _main_reason(result: LookupResult, cls: str) -> str:
    return result.reason if cls in (model.SHIFTED_BOUNDARY, model.ALIGNMENT) else ""


def _finding(case: _Case, lookup: int) -> Finding:
    rule, headline, fix = _RULES[case.cls]
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
        "retention_interval": case.settings.retention,
    }
    which = f"{count} lookup{'s' if count > 1 else ''}"
    summary = f"{headline}: {number(case.tokens)} tokens in {which}"
    return Finding(rule, summary, evidence, fix(case), case.tokens, lookup)


def states_per_boundary(group: Group) -> int:
    """Return how many blocks a group keeps for one boundary."""
    far = 2 * (group.window // group.block_size + 1) * group.block_size
    return len(required_positions(group, far)) if group.window else 1


def retention_fix(settings: Settings) -> str:
    """Return how to set the retention interval to the scheduler block in this version of vLLM."""
    block = settings.scheduler_block
    flag = f"{RETENTION_FLAG} {block}"
    if settings.version_tuple < (0, 29):
        return (
            f"set the environment variable {RETENTION_VARIABLE}={block} (vLLM {settings.version}; "
            f"from 0.29 on it is the flag {flag})"
        )
    return f"start vLLM with {flag}"


def _shifted(case: _Case) -> str:
    settings, worst = case.settings, case.worst
    price = max(states_per_boundary(settings.groups[group]) for group in worst.limiting_groups)
    fix = (
        f"{retention_fix(settings)}: a state is then kept every {number(settings.scheduler_block)} tokens, "
        f"at {number(worst.needed_boundary)} too, at the price of {price} block{'s' if price > 1 else ''} "
        "per group and boundary"
    )
    if worst.reason == "held_prefix":
        return f"first end the loss that moved the boundary (see the finding on it); to keep the state, {fix}"
    if worst.reason == "speculation" and settings.version_tuple < (0, 30):
        fix += "; or upgrade: from vLLM 0.30 on the mask keeps the boundary that an identical resend can use"
    elif worst.reason == "aligned_prompt" and settings.version_tuple < (0, 30):
        fix += "; or upgrade: from vLLM 0.30 on the boundary below a block-aligned prompt's end is kept"
    return fix


def _not_materialized(case: _Case) -> str:
    settings, worst = case.settings, case.worst
    boundary = worst.needed_boundary
    if worst.reason == "never_registered" or not boundary:
        return "look at why the earlier request ended before its prompt was computed (aborted or preempted)"
    fix = f"make a chunk end at {number(boundary)}: --max-num-batched-tokens {_budget(settings, boundary)}"
    lacking = [group for group in worst.groups if group.group in worst.limiting_groups]
    if settings.retention == names.RETENTION_DENSE or all(boundary in group.wanted for group in lacking):
        return f"{fix}; the mask keeps the state there"
    return f"{fix}, and keep the state there: {retention_fix(settings)}"


def _budget(settings: Settings, boundary: int) -> int:
    """Return the largest batch-token limit, not above today's, that divides the boundary into whole chunks."""
    block = settings.scheduler_block
    parts = range(1, boundary // block + 1)
    sizes = [boundary // n for n in parts if boundary % n == 0 and boundary // n % block == 0]
    return next((size for size in sizes if size <= (settings.max_batched_tokens or size)), boundary)


def _evicted(case: _Case) -> str:
    return (
        "give the KV cache more memory (--gpu-memory-utilization, --kv-cache-memory-bytes), or send requests that "
        "share a prefix closer together or to fewer replicas"
    )


def _alignment(case: _Case) -> str:
    minimum = number(case.settings.minimum)
    if "below_minimum" in case.worst.reason:
        return f"a prefix must have at least {minimum} tokens to be cached here; --prefix-match-unit lowers that"
    return (
        f"hits end on multiples of {number(case.settings.alignment)} tokens; a smaller --prefix-match-unit "
        "or block size brings the boundary closer"
    )


def _constant(text: str) -> Callable[[_Case], str]:
    return lambda case: text


_RULES: dict[str, tuple[str, str, Callable[[_Case], str]]] = {
    model.SHIFTED_BOUNDARY: ("shifted-boundary", "the retention mask refused the state that a hit needed", _shifted),
    model.NOT_MATERIALIZED: ("not-materialized", "no state was ever made where a hit needed one", _not_materialized),
    model.CHECKPOINT_EVICTED: ("checkpoint-evicted", "the state that a hit needed had been evicted", _evicted),
    model.EVICTED: ("evicted", "the prefix had been evicted", _evicted),
    model.RESET: ("reset", "the cache had been cleared", _constant("avoid restarts and resets, or warm the cache up")),
    model.IN_FLIGHT: (
        "in-flight", "the prefix was still being computed", _constant(
            "send the first request of a prefix ahead of the others, or let the router hold them back for a moment"
        ),
    ),
    model.HELD_ELSEWHERE: (
        "held-elsewhere", "another replica held the prefix", _constant(
            "route requests that share a prefix to the same replica"
        ),
    ),
    model.ALIGNMENT: ("alignment", "a hit could not end where the shared prefix ends", _alignment),
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
