"""Findings that are no lost class: figures that disagree, speculation's net, routing, pools, evidence."""

from collections.abc import Mapping, Sequence

import polars as pl

from analyzers import model, pool_findings, routing
from analyzers.coverage import sampled_spans
from analyzers.events import Holes
from analyzers.model import Capacity, Capture, CounterCheck, Finding, Fleet, LookupResult, Range, Routed
from analyzers.settings import Settings
from analyzers.speed import Speed, total_seconds
from analyzers.usage import disagreements
from analyzers.wording import counted, number

RULES = ("reporting", "speculation-net", *routing.RULES, *pool_findings.RULES, "sampled")


def observations(
    capture: Capture,
    results: Sequence[LookupResult],
    settings: Sequence[Settings],
    known: Mapping[int, Speed],
    fleet: Fleet | None,
    capacity: Sequence[Capacity],
    holes: Holes,
    counters: Sequence[CounterCheck],
    routed: Sequence[Routed],
) -> list[Finding]:
    """Return what there is to say beside the lost classes; settings and speeds are by life."""
    return [
        *_reporting(capture, results),
        *_counters(counters),
        *_speculation(capture, results, settings, known),
        *routing.findings(fleet, results, routed),
        *pool_findings.pool_findings(capacity),
        *_evidence(capture, results, holes),
    ]


def _reporting(capture: Capture, results: Sequence[LookupResult]) -> list[Finding]:
    found = []
    grouped: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for each in disagreements(capture, results):
        grouped.setdefault((each.source, each.what), []).append((each.result, each.said, each.counted))
    for (source, what), rows in sorted(grouped.items()):
        worst, said, ours = max(rows, key=lambda row: abs(row[1] - row[2]))
        found.append(
            Finding(
                rule="reporting",
                summary=f"{source} reports other {what} than the lookups: {len(rows)} of {len(results)} requests",
                evidence={"source": source, "what": what, "said": said, "lookup": ours, "requests": len(rows)},
                fix="trust the lookups: a request's figure may be taken before admission, from another attempt, or "
                "leave out what a connector brought",
                tokens_lost=0,
                lookup=worst,
                cause=f"{source} says {number(said)} {what}, the lookup {number(ours)}",
                severity="error",
                replicas=sorted({results[row[0]].replica for row in rows}),
            )
        )
    return found


def _counters(checks: Sequence[CounterCheck]) -> list[Finding]:
    """Return where a counter cannot have counted what the lookups say."""
    found = []
    for check in checks:
        if check.agrees:
            continue
        ours = number(check.least) if check.least == check.most else f"{number(check.least)} to {number(check.most)}"
        what = "tokens looked up" if check.what == "queries" else "tokens hit"
        fix = "look for lookups that the capture lacks, and for engines whose counters it lacks"
        if check.with_refused:
            fix = "trust the lookups: this counter takes a lookup again each time that its admission was refused, as "
            fix += "vLLM 0.26 does; from 0.27 on it counts admitted ones alone"
        found.append(
            Finding(
                rule="reporting",
                summary=f"{check.source} counts {number(check.said)} {what} on {', '.join(check.replicas)}, the "
                f"lookups {ours}",
                evidence={"source": check.source, "what": check.what, "said": check.said, "least": check.least,
                          "most": check.most, "begin": check.begin, "end": check.end},
                fix=fix,
                tokens_lost=0,
                severity="info" if check.with_refused else "error",
                replicas=list(check.replicas),
            )
        )  # fmt: skip
    return found


def _speculation(
    capture: Capture, results: Sequence[LookupResult], settings: Sequence[Settings], known: Mapping[int, Speed]
) -> list[Finding]:
    """Weigh the decode steps that accepted drafts saved against the prefill that dropped blocks cost."""
    found = []
    drafts = capture.requests.drop_nulls("accepted_tokens")
    alike: dict[Settings, list[int]] = {}
    for life, own in enumerate(settings):
        alike.setdefault(own, []).append(life)
    for setting, lives in alike.items():
        rows = drafts.filter(pl.col("life").is_in(lives))
        if not setting.speculative_method or rows.is_empty():
            continue
        lost: dict[int, int] = {}
        cuts = 0
        among = frozenset(lives)
        for result in results:
            if result.life in among:
                cut = result.lost.get(model.ALIGNMENT, 0) if "after_drop" in result.reason else 0
                cuts += cut
                lost[result.life] = lost.get(result.life, 0) + result.lost.get(model.SPECULATIVE_DROP, 0) + cut
        prefill, saved = total_seconds(lost, known), _saved(rows, known)
        accepted, drafted = int(rows["accepted_tokens"].sum()), int(rows["drafted_tokens"].sum() or 0)
        tokens = sum(lost.values())
        if not tokens:
            continue
        worse = bool(accepted and prefill and saved and saved[1] < prefill[0])
        fix = "speculation pays here: leave it on"
        if worse:
            fix = "turn speculation off for this workload"
            if cuts:
                fix += ", or let it drop less (see the finding speculation-cuts-hits)"
        elif not accepted:
            fix = "find out why no draft was accepted: the lab accepts none unless its scenario has accepted_tokens, "
            fix += "and a drafter that does not fit the model gets none accepted either; then speculation only costs"
        elif not (prefill and saved and saved[0] > prefill[1]):
            fix = "the capture does not tell whether speculation pays; compare a run without --speculative-config"
        found.append(
            Finding(
                rule="speculation-net",
                summary=f"speculation cost {counted(tokens)} of prefill; "
                f"{number(accepted)} of {number(drafted)} drafts were accepted",
                evidence={"method": setting.speculative_method, "drafted": drafted, "accepted": accepted,
                          "prefill_seconds": prefill, "decode_seconds_saved": saved},
                fix=fix,
                tokens_lost=0,
                severity="warning" if worse else "info",
                replicas=sorted({capture.lives[life].replica for life in lives}),
            )
        )  # fmt: skip
    return found


def _saved(rows: pl.DataFrame, known: Mapping[int, Speed]) -> Range | None:
    """Return the seconds of decoding that accepted drafts saved: a step each, shared with the others in it or not."""
    low = high = 0.0
    told = False
    for (life,), own in rows.group_by("life"):
        speed = known.get(int(life))
        if speed and speed.decode_step:
            accepted = int(own["accepted_tokens"].sum())
            low += accepted * speed.decode_step[0] / max(1.0, speed.running)
            high += accepted * speed.decode_step[1]
            told = True
    return (low, high) if told else None


def _evidence(capture: Capture, results: Sequence[LookupResult], holes: Holes) -> list[Finding]:
    sampled = sampled_spans(capture, holes)
    if not sampled and not capture.unexported_spans:
        return []
    unknown = sum(result.lost.get(model.UNKNOWN, 0) for result in results)
    return [
        Finding(
            rule="sampled",
            summary=f"the capture is thinned: sampling kept back {number(sampled)} spans of evidence, "
            f"and {number(capture.unexported_spans)} found no room",
            evidence={"unknown_tokens": unknown, "missing": holes.missing},
            fix="analyze the whole evidence, which sampling does not thin: the sidecar's own file, or what a collector "
            "recorded before it sampled",
            tokens_lost=0,
            severity="info",
        )
    ]
