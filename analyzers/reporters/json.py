"""The analysis as one JSON object. Its schema, version 1, is documented in docs/analyze.md and only ever grows."""

import json
import math
from collections.abc import Mapping
from typing import Any

from analyzers.model import (
    CLASSES,
    Analysis,
    Capacity,
    CounterCheck,
    Coverage,
    Finding,
    Fleet,
    GroupState,
    LookupResult,
    Range,
    Routed,
    Sequence_,
)
from analyzers.reporters.selection import Lookups, select_lookups

SCHEMA_VERSION = 1


def render(analysis: Analysis, lookups: Lookups = "all", lookups_file: str | None = None) -> str:
    """Return the object as text, the same for the same analysis.

    Args:
        analysis: what to report.
        lookups: which lookups are in it.
        lookups_file: the Parquet file that has them instead, "" for none; None: they stand in the object.

    """
    return json.dumps(to_object(analysis, lookups, lookups_file), indent=2, allow_nan=False) + "\n"


def to_object(analysis: Analysis, lookups: Lookups = "all", lookups_file: str | None = None) -> dict[str, Any]:
    """Return the object of the documented schema, made of dicts, lists and scalars."""
    chosen = select_lookups(analysis, lookups) if lookups_file is None else ()
    return {
        "schema_version": SCHEMA_VERSION,
        "coverage": _coverage(analysis.coverage),
        "replicas": [
            {"replica": replica, "settings": _plain(settings)}
            for replica, settings in sorted(analysis.replicas.items())
        ],
        "tokens": {
            "prompt": analysis.prompt_tokens,
            "hit": analysis.hit_tokens,
            "lost": _lost(analysis.lost),
        },
        "seconds": {"prefill": _range(analysis.prefill_seconds), "avoidable": _range(analysis.avoidable_seconds)},
        "funnel": dict(analysis.funnel),
        "fleet": _fleet(analysis.fleet),
        "capacity": [_capacity(capacity) for capacity in analysis.capacity],
        "routed": [_routed(each) for each in analysis.routed],
        "counters": [_counter(check) for check in analysis.counters],
        "lookups": [_lookup(lookup) for lookup in chosen],
        "lookups_file": lookups_file,
        "sequences": [_sequence(sequence) for sequence in analysis.sequences],
        "findings": [_finding(finding, analysis) for finding in analysis.findings],
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "spans": coverage.spans,
        "replicas": coverage.replicas,
        "lookups": coverage.lookups,
        "missing_records": coverage.missing_records,
        "skipped_lines": coverage.skipped_lines,
        "foreign_spans": coverage.foreign_spans,
        "notes": list(coverage.notes),
        "sampled_spans": coverage.sampled_spans,
        "unexported_spans": coverage.unexported_spans,
        "samplers": list(coverage.samplers),
        "begin": coverage.begin,
        "end": coverage.end,
        "incomplete_replicas": list(coverage.incomplete_replicas),
        "skew_ms": _plain(coverage.skew),
    }


def _range(seconds: Range | None) -> list[float] | None:
    return None if seconds is None else [_plain(value) for value in seconds]


def _fleet(fleet: Fleet | None) -> dict[str, Any] | None:
    if fleet is None:
        return None
    return {
        "regret_tokens": fleet.regret_tokens,
        "regretted_lookups": fleet.regretted_lookups,
        "regret_by_family": [{"family": family, "tokens": tokens} for family, tokens in fleet.regret_by_family],
        "stored_tokens": fleet.stored_tokens,
        "distinct_tokens": fleet.distinct_tokens,
        "sticky_prefix_tokens": fleet.sticky_prefix_tokens,
        "sticky_conversation_tokens": fleet.sticky_conversation_tokens,
    }


def _capacity(capacity: Capacity) -> dict[str, Any]:
    return {
        "replica": capacity.replica,
        "num_blocks": capacity.num_blocks,
        "groups": [
            {
                "group": group.group,
                "kind": group.kind,
                "block_size": group.block_size,
                "drafter": group.drafter,
                "peak_blocks": group.peak_blocks,
                "share": _plain(group.share),
                "stored": group.stored,
                "evicted": group.evicted,
                "segment_blocks": _plain(group.segment_blocks),
                "age_ms": _range(group.age_ms),
                "pushed_out": group.pushed_out,
                "pushed_out_share": _plain(group.pushed_out_share),
            }
            for group in capacity.groups
        ],
        "occupancy": [{"ms": _plain(ms), "blocks": list(blocks)} for ms, blocks in capacity.occupancy],
        "reuse_gap_ms": _range(capacity.reuse_gap_ms),
        "warm": capacity.warm,
        "longest": [{"request_id": request, "tokens": tokens} for request, tokens in capacity.longest],
        "evictions": [{"by": each.by, "of": each.of, "blocks": each.blocks} for each in capacity.evictions],
        "cached_most": capacity.cached_most,
        "used_most": _plain(capacity.used_most),
    }


def _routed(routed: Routed) -> dict[str, Any]:
    return {
        "endpoint": routed.endpoint,
        "routing_logic": routed.routing_logic,
        "replicas": list(routed.replicas),
        "lookups": routed.lookups,
        "hit_tokens": routed.hit_tokens,
        "regret_tokens": routed.regret_tokens,
        "predicted_lookups": routed.predicted_lookups,
        "predicted_tokens": routed.predicted_tokens,
        "best_tokens": routed.best_tokens,
    }


def _counter(check: CounterCheck) -> dict[str, Any]:
    return {
        "source": check.source,
        "what": check.what,
        "replicas": list(check.replicas),
        "begin": check.begin,
        "end": check.end,
        "said": check.said,
        "least": check.least,
        "most": check.most,
        "agrees": check.agrees,
        "with_refused": check.with_refused,
    }


def _lost(lost: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens per class in the order of the ladder, classes without a token left out."""
    return {name: lost[name] for name in sorted(lost, key=_ladder_order) if lost[name]}


def _ladder_order(name: str) -> tuple[int, str]:
    return (CLASSES.index(name) if name in CLASSES else len(CLASSES), name)


def _lookup(lookup: LookupResult) -> dict[str, Any]:
    return {
        "request_id": lookup.request_id,
        "replica": lookup.replica,
        "attempts": lookup.attempts,
        "prompt_tokens": lookup.prompt_tokens,
        "hit_tokens": lookup.hit_tokens,
        "predicted_hit_tokens": lookup.predicted_hit_tokens,
        "needed_boundary": lookup.needed_boundary,
        "lost": _lost(lookup.lost),
        "limiting_groups": sorted(lookup.limiting_groups),
        "reason": lookup.reason,
        "cause": lookup.cause,
        "producer": lookup.producer,
        "family": lookup.family,
        "ladder": [{"class": cls, "from": upper, "to": lower} for cls, upper, lower in lookup.ladder],
        "intact_boundary": lookup.intact_boundary,
        "best_hit_tokens": lookup.best_hit_tokens,
        "best_replicas": list(lookup.best_replicas),
        "regret_tokens": lookup.regret_tokens,
        "previous_turn_hit_tokens": lookup.previous_turn_hit_tokens,
        "endpoint": lookup.endpoint,
        "routing_logic": lookup.routing_logic,
        "router_hit_tokens": lookup.router_hit_tokens,
        "facts": [
            {"class": fact.cls, "tokens": fact.tokens, "says": fact.says, "data": _plain(fact.data)}
            for fact in lookup.facts
        ],
        "groups": [_group(group) for group in sorted(lookup.groups, key=lambda group: group.group)],
    }


def _group(group: GroupState) -> dict[str, Any]:
    return {
        "group": group.group,
        "kind": group.kind,
        "block_size": group.block_size,
        "asked_tokens": group.asked_tokens,
        "hit_tokens": group.hit_tokens,
        "stored_below": group.stored_below,
        "stored_above": group.stored_above,
        "state": group.state,
        "chunk_start": group.chunk_start,
        "chunk_end": group.chunk_end,
        "wanted": list(group.wanted),
        "unmade": list(group.unmade),
    }


def _sequence(sequence: Sequence_) -> dict[str, Any]:
    return {
        "requests": list(sequence.requests),
        "shape": sequence.shape,
        "hits": list(sequence.hits),
        "pattern": sequence.pattern,
        "cause": sequence.cause,
        "replicas": list(sequence.replicas),
        "shared_tokens": sequence.shared_tokens,
        "boundary": sequence.boundary,
    }


def _finding(finding: Finding, analysis: Analysis) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "summary": finding.summary,
        "evidence": _plain(finding.evidence),
        "cause": finding.cause,
        "fix": finding.fix,
        "tokens_lost": finding.tokens_lost,
        "tokens_regained": finding.tokens_regained,
        "seconds_lost": _range(finding.seconds_lost),
        "replicas": list(finding.replicas),
        "lookup": None if finding.lookup is None else analysis.lookups[finding.lookup].request_id,
    }


def _plain(value: Any) -> Any:
    """Return `value` as JSON can say it: keys sorted, numbers that JSON has no form for as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return [_plain(each) for each in sorted(value, key=str)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
