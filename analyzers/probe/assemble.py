"""From what came of the sends to what a server did: verdicts, comparisons, and what it does not tell. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from analyzers.model import Finding
from analyzers.probe import compare
from analyzers.probe.model import (
    CONTROL,
    PLAIN,
    PROBED,
    SHAPES,
    SPECULATION_ALONE,
    Observation,
    ServerReport,
    ShapeVerdict,
    Sizes,
)
from analyzers.probe.session import Session
from analyzers.probe.spans import Joined
from analyzers.probe.verdict import Known, judge, overall


def with_usage(observations: Sequence[Observation]) -> list[Observation]:
    """Return the observations with their hits by usage figures: absent ones are 0 on a server that gives others."""
    given = any(one.answer.cached_tokens is not None for one in observations)
    return [replace(one, usage_hit=(one.answer.cached_tokens or 0) if given else None) for one in observations]


def report_on(
    session: Session, joined: Joined, sizes: Sizes, notes: Sequence[str], probed: ServerReport | None
) -> ServerReport:
    """Return what one server did; its answers are compared with those of `probed` where that is another one."""
    observations, counters = joined.observations, session.counters
    sources = [
        name
        for name, hits in (
            ("usage", [one.usage_hit for one in observations]),
            ("metrics", [one.metrics_hit for one in observations]),
            ("spans", [one.spans_hit for one in observations]),
        )
        if any(hit is not None for hit in hits)
    ]
    known = Known(
        cold=[one.answer.time_to_first_token for one in observations if one.send.cold],
        caching=_caching(session, observations),
        speculation=bool(counters and counters.drafted is not None),
        fixes=_fixes(joined.analysis.findings if joined.analysis else ()),
    )
    shapes = [_judged(shape, observations, sizes, known) for shape in SHAPES]
    return ServerReport(
        role=session.role,
        url=session.server.url,
        model=session.model.name,
        max_tokens=session.model.max_tokens,
        observations=observations,
        verdict=overall(shapes),
        shapes=shapes,
        comparison=compare.within(observations),
        against=None if probed is None else compare.between(probed.observations, observations),
        config=dict(counters.config) if counters else {},
        settings=joined.settings,
        analysis=joined.analysis,
        sources=sources,
        notes=[*notes, *_lacks(session, sources), *_out_of_role(session, observations)],
    )


def _judged(shape: str, observations: Sequence[Observation], sizes: Sizes, known: Known) -> ShapeVerdict:
    return judge(shape, [one for one in observations if one.send.shape == shape], sizes, known)


def _caching(session: Session, observations: Sequence[Observation]) -> bool | None:
    """Whether the server looks prompts up at all, by its configuration or by its count of lookups."""
    if session.counters and session.counters.caching is not None:
        return session.counters.caching
    asked = [one.delta.queries for one in observations if one.delta and one.delta.queries is not None]
    return False if asked and not any(asked) else None


def _out_of_role(session: Session, observations: Sequence[Observation]) -> list[str]:
    """Say where a server that stands beside the probed one does not do what its role says."""
    caches = any(one.hit for one in observations)
    speculates = bool(session.counters and session.counters.drafted is not None)
    notes = []
    if session.role in (SPECULATION_ALONE, PLAIN) and caches:
        notes.append(f"this server reuses prefixes: it is no {session.role}")
    if session.role in (CONTROL, PLAIN) and speculates:
        notes.append(f"this server speculates: it is no {session.role}")
    if session.role == SPECULATION_ALONE and session.counters and not speculates:
        notes.append("this server counts no drafted tokens: does it speculate?")
    return notes


def _fixes(findings: Sequence[Finding]) -> dict[str, str]:
    fixes: dict[str, str] = {}
    for finding in findings:
        fixes.setdefault(finding.rule.replace("-", "_"), finding.fix)
    return fixes


def _lacks(session: Session, sources: Sequence[str]) -> list[str]:
    """Say what the server does not tell, and how it would."""
    notes = []
    if session.counters is None:
        notes.append(
            "/metrics has no counters of vLLM: whether others use the server, what was looked up, and what speculation "
            "did are not known"
        )
    if "usage" not in sources:
        notes.append(
            "no cached tokens in the usage figures (usage.prompt_tokens_details): start the server with "
            "--enable-prompt-tokens-details"
        )
    if session.role == PROBED and "spans" not in sources:
        notes.append(
            "without spans of otel-cache: times, usage figures and counters alone tell that a prefix was not reused, "
            "not why. Start the server by `otel-cache run --out FILE` and give --spans FILE, or --otlp-port"
        )
    return notes
