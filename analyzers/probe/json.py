"""A probe as one JSON object; docs/probe.md has its schema. Tokens are integers, times are in seconds."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from analyzers.probe.compare import summarize
from analyzers.probe.model import Comparison, Observation, Report, ServerReport, ShapeVerdict
from analyzers.reporters.json import to_object as analysis_object

SCHEMA_VERSION = 1


def render(report: Report) -> str:
    """Return the report as text."""
    return json.dumps(to_object(report), indent=2) + "\n"


def to_object(report: Report) -> dict[str, Any]:
    """Return the report as an object that JSON can say."""
    sizes = report.sizes
    return {
        "schema_version": SCHEMA_VERSION,
        "probe": {
            "salt": report.salt,
            "prompts": report.form,
            "prompt_tokens": sizes.prompt_tokens,
            "boundary": sizes.boundary,
            "grid": sizes.grid,
            "grid_source": sizes.source,
            "lookahead": sizes.lookahead,
            "repeats": report.repeats,
            "output_tokens": report.output_tokens,
        },
        "verdict": _verdict(report.servers[0].verdict),
        "servers": [_server(server) for server in report.servers],
    }


def _server(server: ServerReport) -> dict[str, Any]:
    analysis = analysis_object(server.analysis) if server.analysis else {"findings": [], "lookups": []}
    lookups = {(each["replica"], each["request_id"]): each for each in analysis["lookups"]}
    return {
        "role": server.role,
        "url": server.url,
        "model": server.model,
        "max_model_len": server.max_tokens,
        "verdict": _verdict(server.verdict),
        "shapes": [_verdict(shape) for shape in server.shapes],
        "outputs": _comparison(server.comparison),
        "outputs_against_probed": None if server.against is None else _comparison(server.against),
        "summary": _summary(server),
        "sources": list(server.sources),
        "notes": list(server.notes),
        "cache_config": dict(sorted(server.config.items())),
        "settings": {str(key): _plain(value) for key, value in sorted(server.settings.items())},
        "findings": analysis["findings"],
        "requests": [_request(one, lookups) for one in server.observations],
    }


def _verdict(verdict: ShapeVerdict) -> dict[str, Any]:
    return {
        "shape": verdict.shape,
        "verdict": verdict.kind,
        "hits": list(verdict.hits),
        "pattern": verdict.pattern,
        "boundary": verdict.boundary,
        "expected_boundary": verdict.expected,
        "groups": list(verdict.groups),
        "group_kinds": list(verdict.group_kinds),
        "class": verdict.cause,
        "says": verdict.says,
        "fix": verdict.fix,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "equal": comparison.equal,
        "by": comparison.by,
        "compared": comparison.compared,
        "differing": [dict(pair) for pair in comparison.differing],
    }


def _summary(server: ServerReport) -> dict[str, Any]:
    summary = summarize(server.observations)
    return {
        "cold_time_to_first_token": summary.cold,
        "repeat_time_to_first_token": summary.repeats,
        "output_tokens_per_second": summary.throughput,
        "hit_rate": summary.hit_rate,
        "acceptance_rate": summary.acceptance,
    }


def _request(one: Observation, lookups: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    lookup = one.lookup
    return {
        "shape": one.send.shape,
        "number": one.send.number,
        "request_id": one.answer.request_id,
        "trace_id": one.trace_id,
        "prompt_tokens": one.prompt_tokens,
        "shared_tokens": one.send.shared,
        "output_tokens": one.answer.output_tokens,
        "time_to_first_token": one.answer.time_to_first_token,
        "duration": one.answer.duration,
        "hit_tokens": one.hit,
        "usage_cached_tokens": one.usage_hit,
        "metrics": None if one.delta is None else asdict(one.delta),
        "lookup": None if lookup is None else lookups.get((lookup.replica, lookup.request_id)),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
