"""What the reports to read say alike: stages, times, and which requests of a sequence are named."""

from collections.abc import Sequence

from analyzers.model import Analysis, Finding, Sequence_
from analyzers.reporters.layout import duration
from otel_cache.semconv import names

STAGES = {
    "prompt": "prompt",
    "seen_before": "seen before",
    "held_somewhere": "held on some replica",
    "held_here": "held on the replica chosen",
    "agreed": "agreed on by all groups",
    "served": "served",
}
"""The stages of `Analysis.funnel` in words."""
MAX_NAMED = 8
"""Requests of a sequence that are named, with their hits."""
LAST_NAMED = 3
LAB_MODEL = "lab-model"
"""What the lab's replicas call their model: their steps compute nothing."""
LAB = "These are times of a scheduler without a model (the lab's): they say nothing of a server's."


def funnel(analysis: Analysis) -> list[tuple[str, int]]:
    """Return each stage in words, and the tokens that are left there; nothing where there is no prompt."""
    stages = analysis.funnel
    return [(STAGES[stage], tokens) for stage, tokens in stages.items()] if stages["prompt"] else []


def prefill(analysis: Analysis) -> list[str]:
    """Say how long prefill took, in sentences; nothing where the capture does not tell."""
    if not analysis.prefill_seconds:
        return []
    said = f"Prefill took {duration(analysis.prefill_seconds)}"
    if analysis.avoidable_seconds and analysis.avoidable_seconds[1]:
        said += f", of which {duration(analysis.avoidable_seconds)} could have been saved"
    return [f"{said}."] + ([LAB] if _of_lab(analysis) else [])


def _of_lab(analysis: Analysis) -> bool:
    return any(settings.get(names.MODEL) == LAB_MODEL for settings in analysis.replicas.values())


def also(finding: Finding) -> list[str]:
    """Return the other causes that would explain the loss, a sentence each."""
    said = finding.evidence.get("also", ())
    return [str(each) for each in said] if isinstance(said, list | tuple) else []


def elided(each: Sequence[str]) -> list[str]:
    """Return what stands for each request of a sequence: of a long one the first and the last, and how many between.

    Ids and hits that are elided alike stand in the same places.
    """
    if len(each) <= MAX_NAMED:
        return list(each)
    first = MAX_NAMED - LAST_NAMED - 1
    between = len(each) - first - LAST_NAMED
    return [*each[:first], f"... {between:,} more ...", *each[-LAST_NAMED:]]


def hits(sequence: Sequence_) -> str:
    """Return the hits of a sequence, elided as its requests are."""
    return ", ".join(elided([f"{hit:,}" for hit in sequence.hits]))


def where(sequence: Sequence_) -> str:
    """Say what of a sequence stands in neither its requests nor its hits: replicas, and what a divergence shares."""
    parts = []
    if (replicas := len(set(sequence.replicas))) > 1:
        parts.append(f"on {replicas:,} replicas")
    if sequence.shape == "divergence":
        parts.append(f"{sequence.shared_tokens:,} tokens shared, the last boundary in them {sequence.boundary:,}")
    return ", ".join(parts)
