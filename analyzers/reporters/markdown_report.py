"""The analysis as Markdown, for a pull request, a ticket or a chat: the same sections as the text report."""

from analyzers.model import Analysis, Finding
from analyzers.reporters.boundaries import HEADER, state_rows
from analyzers.reporters.layout import count, duration, figures, percent, sentence
from analyzers.reporters.markdown import escape, markdown_table
from analyzers.reporters.selection import Lookups, heaps, ordered, select_lookups

MAX_ROWS = 50


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
        markdown_table(
            ("stage", "tokens"),
            ((stage.replace("_", " "), f"{tokens:,}") for stage, tokens in analysis.funnel.items()),
            "<>",
        ),
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


def _top(analysis: Analysis, top: int) -> list[str]:
    parts = []
    if analysis.prefill_seconds:
        saved = analysis.avoidable_seconds
        could = f", of which {duration(saved)} could have been saved" if saved else ""
        parts.append(f"Prefill took {duration(analysis.prefill_seconds)}{could}.")
    best = [finding for finding in analysis.findings if finding.tokens_lost and finding.severity == "warning"][:top]
    if best:
        parts += [
            "## What would give most back",
            "\n".join(f"{number}. {each.tokens_lost:,}: {escape(each.fix)}" for number, each in enumerate(best, 1)),
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
    named = [each for each in analysis.sequences if each.pattern][:MAX_ROWS]
    if not named:
        return []
    rows = (
        (
            each.pattern,
            each.shape,
            ", ".join(each.requests[:8]) + (f" and {len(each.requests) - 8} more" if len(each.requests) > 8 else ""),
            ", ".join(f"{hit:,}" for hit in each.hits[:8]),
        )
        for each in named
    )
    return ["## Sequences", markdown_table(("pattern", "shape", "requests", "hits"), rows, "<<<<")]


def _lookups(analysis: Analysis, lookups: Lookups) -> list[str]:
    chosen = select_lookups(analysis, lookups)
    if not chosen:
        return []
    rows = (
        (
            each.request_id,
            each.replica,
            f"{each.prompt_tokens:,}",
            f"{each.hit_tokens:,}",
            ", ".join(f"{cls} {tokens:,}" for cls, tokens in ordered(each.lost)),
        )
        for each in chosen[:MAX_ROWS]
    )
    parts = [f"## Lookups ({lookups})", markdown_table(("request", "replica", "prompt", "hit", "lost"), rows, "<<>><")]
    if len(chosen) > MAX_ROWS:
        parts.append(f"{len(chosen) - MAX_ROWS:,} more; JSON and Parquet have them all.")
    return parts
