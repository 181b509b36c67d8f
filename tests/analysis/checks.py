"""What must hold for every analysis of a lab run, whatever the scenario."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzers.analysis import analyze
from analyzers.model import Analysis, Finding, LookupResult
from analyzers.readers import open_capture
from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.scenario import Scenario


def analyzed(worker: LabWorker, scenario: Scenario | Mapping[str, Any], out: Path) -> Analysis:
    """Run `scenario`, analyze its spans, and hold the result against what vLLM itself said."""
    said = worker.run(scenario, out)
    analysis = analyze(open_capture([out]))
    check(analysis, said)
    return analysis


def check(analysis: Analysis, said: LabResult) -> None:
    """Hold the invariants: tokens add up, hits are vLLM's, and each was predicted."""
    assert analysis.coverage.missing_records == 0
    assert analysis.coverage.skipped_lines == 0
    # A request that was aborted before it began has looked up, and begun with nothing.
    began = {request.request_id: request.hit_tokens for request in said.requests if request.chunks}
    assert {one.request_id: began_with(one) for one in analysis.lookups if one.request_id in began} == began
    assert not [finding for finding in analysis.findings if finding.severity == "error"]
    for seconds in (analysis.prefill_seconds, *(finding.seconds_lost for finding in analysis.findings)):
        assert seconds is None or 0 <= seconds[0] <= seconds[1]
    if analysis.prefill_seconds and analysis.avoidable_seconds:
        assert all(
            part <= whole for part, whole in zip(analysis.avoidable_seconds, analysis.prefill_seconds, strict=True)
        )
    for lookup in analysis.lookups:
        assert lookup.hit_tokens + sum(lookup.lost.values()) == lookup.prompt_tokens, lookup
        assert lookup.predicted_hit_tokens == lookup.hit_tokens + lookup.lost.get("discarded_after_lookup", 0), lookup
        assert not {"unknown", "unexplained"} & set(lookup.lost), lookup
        assert all(tokens > 0 for tokens in lookup.lost.values()), lookup


def began_with(lookup: LookupResult) -> int:
    """Return the tokens that the request had computed when it began: its hit, and what a connector brought."""
    return lookup.hit_tokens + lookup.lost.get("external_hit", 0)


def hits(analysis: Analysis) -> list[int]:
    """Return the hits in the order of the lookups."""
    return [lookup.hit_tokens for lookup in analysis.lookups]


def losses_found(analysis: Analysis) -> list[Finding]:
    """Return the findings on lost tokens; what a report says beside them is left out."""
    return [finding for finding in analysis.findings if finding.tokens_lost]


def find(analysis: Analysis, request_id: str) -> LookupResult:
    """Return the result of one request."""
    return next(lookup for lookup in analysis.lookups if lookup.request_id == request_id)
