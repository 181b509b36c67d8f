"""The analysis as Markdown, for a pull request, a ticket or a chat: the same sections as the text report."""

from analyzers.model import Analysis, Finding
from analyzers.reporters import words
from analyzers.reporters.boundaries import HEADER, state_rows
from analyzers.reporters.layout import count, duration, figures, percent, sentence
from analyzers.reporters.markdown import escape, markdown_table
from analyzers.reporters.selection import Lookups, heaps, ordered, select_lookups, select_sequences, worst


def render(analysis: Analysis, lookups: Lookups = "losing", top: int = 3) -> str:
    """Return the report; `lookups` says which of them are listed, at most 50, `top` how many fixes it opens with."""
    coverage = analysis.coverage
    parts = [
        "# Why prompt tokens were computed",
        f"{count(coverage.spans, 'span')}, {count(coverage.replicas, 'replica')}, "
        f"{count(coverage.lookups, 'lookup')}; {count(coverage.missing_records, 'missing record')}, "
        f"{count(coverage.skipped_lines, 'skipped line')}",
        _heaps(analysis),
        *_top(analysis, top),
        "## From prompt to hit",
        _funnel(analysis),
        f"## Findings ({len(analysis.findings)})",
        *(_finding(number, finding, analysis) for number, finding in enumerate(analysis.findings, 1)),
        *_sequences(analysis),
        *_lookups(analysis, lookups),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heaps(analysis: Analysis) -> str:
    prompt = analysis.prompt_tokens
    rows = [("served from cache", analysis.hit_tokens)]
    for title, classes in heaps(analysis.lost):
        rows.append((title, sum(tokens for _, tokens in classes)))
        rows += [(f"- {cls}", tokens) for cls, tokens in classes]
    cells = ((title, f"{tokens:,}", percent(tokens, prompt)) for title, tokens in rows)
    return markdown_table((f"of {count(prompt, 'prompt token')}", "tokens", "share"), cells, "<>>")


def _funnel(analysis: Analysis) -> str:
    whole = analysis.funnel["prompt"]
    rows = ((stage, f"{tokens:,}", percent(tokens, whole)) for stage, tokens in words.funnel(analysis))
    return markdown_table(("stage", "tokens", "share"), rows, "<>>")


def _top(analysis: Analysis, top: int) -> list[str]:
    parts = []
    if prefill := words.prefill(analysis):
        parts.append(" ".join(prefill))
    best = analysis.best_fixes[:top]
    if best:
        parts += [
            "## What would give most back",
            "\n".join(f"{number}. {tokens:,}: {escape(fix)}" for number, (tokens, fix) in enumerate(best, 1)),
        ]
    return parts


def _finding(number: int, finding: Finding, analysis: Analysis) -> str:
    lines = [f"### {number}. {escape(sentence(finding.summary))}", "", f"- rule: {escape(finding.rule)}"]
    lines.append(f"- severity: {finding.severity}")
    if finding.replicas:
        lines.append(f"- replicas: {escape(', '.join(finding.replicas))}")
    lookup = analysis.lookups[finding.lookup] if finding.lookup is not None else None
    if lookup is not None:
        where = f"{lookup.request_id} on {lookup.replica}: hit {lookup.hit_tokens:,} of {lookup.prompt_tokens:,}"
        lines.append(f"- seen at: {escape(where)}")
    if finding.cause:
        lines.append(f"- cause: {escape(finding.cause)}")
    lines += [f"- also: {escape(said)}" for said in words.also(finding)]
    if lookup is None and finding.evidence:
        lines.append(f"- evidence: {escape(figures(finding.evidence))}")
    lines.append(f"- fix: {escape(finding.fix)}")
    if finding.tokens_lost:
        seconds = f", {duration(finding.seconds_lost)} of prefill" if finding.seconds_lost else ""
        lines.append(f"- lost: {count(finding.tokens_lost, 'token')}{seconds}")
    if lookup is not None and lookup.groups:
        lines += ["", markdown_table((*HEADER, f"at {lookup.needed_boundary:,}"), state_rows(lookup), "<<>>>>><")]
    return "\n".join(lines)


def _sequences(analysis: Analysis) -> list[str]:
    shown = select_sequences(analysis)
    if not shown:
        return []
    rows = (
        (
            each.pattern,
            each.shape,
            ", ".join(words.elided(each.requests)),
            words.hits(each),
            words.where(each),
            sentence(each.cause),
        )
        for each in shown
    )
    header = ("pattern", "shape", "requests", "hits", "where", "cause")
    hidden = len(analysis.sequences) - len(shown)
    parts = [f"## Sequences ({len(analysis.sequences):,})", markdown_table(header, rows, "<<<<<<")]
    return parts + ([f"{hidden:,} more; JSON has them all."] if hidden else [])


def _lookups(analysis: Analysis, lookups: Lookups) -> list[str]:
    chosen = select_lookups(analysis, lookups)
    if not chosen:
        return []
    shown = worst(chosen)
    rows = (
        (
            each.request_id,
            each.replica,
            f"{each.prompt_tokens:,}",
            f"{each.hit_tokens:,}",
            f"{each.predicted_hit_tokens:,}",
            ", ".join(f"{cls} {tokens:,}" for cls, tokens in ordered(each.lost)),
        )
        for each in shown
    )
    header = ("request", "replica", "prompt", "hit", "predicted", "lost")
    parts = [f"## Lookups ({lookups})", markdown_table(header, rows, "<<>>><")]
    if len(chosen) > len(shown):
        parts.append(f"{len(chosen) - len(shown):,} that lost less; JSON and Parquet have them all.")
    return parts
