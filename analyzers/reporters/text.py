"""The analysis as text for a terminal or a ticket: one line of coverage, the heaps, the findings, then details."""

from analyzers.model import Analysis, Coverage, Finding, LookupResult
from analyzers.reporters import words
from analyzers.reporters.boundaries import boundary_table
from analyzers.reporters.layout import (
    INDENT,
    count,
    duration,
    figures,
    percent,
    printable,
    sentence,
    shorten,
    table,
    wrap,
    wrap_columns,
)
from analyzers.reporters.paint import BOLD, GREEN, PLAIN, RED, YELLOW, Paint
from analyzers.reporters.pools import capacity_section, fleet_section, routers_section
from analyzers.reporters.selection import (
    Lookups,
    avoidable,
    brought,
    by_design,
    ordered,
    select_lookups,
    select_sequences,
    uncertain,
    worst,
)

TOP = 3


def render(
    analysis: Analysis, lookups: Lookups = "losing", width: int = 80, color: bool = False, top: int = TOP
) -> str:
    """Return the report, its lines at most `width` characters wide.

    Args:
        analysis: what to report.
        lookups: which lookups are listed: `losing` are those that lost more than is by design.
        width: at least 40.
        color: mark headings and heaps with ANSI colours.
        top: how many fixes the report opens with.

    """
    paint = Paint(color)
    sections = [
        _coverage(analysis.coverage, width),
        _heaps(analysis, width, paint),
        _top(analysis, width, paint, top),
        _funnel(analysis, width, paint),
        _findings(analysis, width, paint),
        fleet_section(analysis, width, paint),
        routers_section(analysis, width, paint),
        capacity_section(analysis, width, paint),
        _sequences(analysis, width, paint),
        _lookups(analysis, lookups, width, paint),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _coverage(coverage: Coverage, width: int) -> list[str]:
    line = (
        f"{count(coverage.spans, 'span')}, {count(coverage.replicas, 'replica')}, {count(coverage.lookups, 'lookup')}; "
        f"{count(coverage.missing_records, 'missing record')}, {count(coverage.skipped_lines, 'skipped line')}"
    )
    if coverage.sampled_spans or coverage.unexported_spans:
        line += f"; {count(coverage.sampled_spans, 'span')} not sampled, {coverage.unexported_spans:,} not exported"
    lines = wrap(line, width)
    if coverage.incomplete_replicas:
        names = ", ".join(shorten(replica, 24) for replica in coverage.incomplete_replicas[:8])
        lines += wrap(f"Incomplete, so that causes may be unknown: {names}", width)
    apart = {replica: ms for replica, ms in coverage.skew.items() if ms}
    if apart:
        said = ", ".join(f"{shorten(replica, 24)} {ms:+,.3f} ms" for replica, ms in apart.items())
        lines += wrap(
            f"Clocks that differ from their callers' (times across replicas are that uncertain): {said}", width
        )
    return lines


def _heaps(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    prompt = analysis.prompt_tokens
    rows: list[tuple[str, str, int]] = [(GREEN, "served from cache", analysis.hit_tokens)]
    others = brought(analysis.lost)
    if others:
        rows.append((GREEN, "brought by a connector", sum(others.values())))
    for code, title, losses in (
        (PLAIN, "lost by design", by_design(analysis.lost)),
        (RED, "avoidable", avoidable(analysis.lost)),
        (YELLOW, "not accounted for", uncertain(analysis.lost)),
    ):
        if title == "not accounted for" and not any(losses.values()):
            continue
        rows.append((code, title, sum(losses.values())))
        rows.extend((PLAIN, INDENT + name, tokens) for name, tokens in ordered(losses))
    names = max(len(title) for _, title, _ in rows)
    digits = max(len(f"{tokens:,}") for _, _, tokens in rows)
    lines = [paint(BOLD, f"Of {count(prompt, 'prompt token')}")]
    for code, title, tokens in rows:
        line = f"{INDENT}{title:<{names}}  {tokens:>{digits},}  {percent(tokens, prompt):>7}".rstrip()
        lines.extend(line if code == PLAIN else paint(code, line) for line in wrap_columns(line, width))
    return lines


def _top(analysis: Analysis, width: int, paint: Paint, top: int) -> list[str]:
    """Return how long prefill took, and the fixes that give most back."""
    lines = [line for said in words.prefill(analysis) for line in wrap(said, width)]
    best = analysis.best_fixes[:top]
    if not best:
        return lines
    if lines:
        lines.append("")
    lines.append(paint(BOLD, "What would give most back"))
    for tokens, fix in best:
        lines += wrap(f"{tokens:,}: {fix}", width, INDENT, INDENT * 2)
    return lines


def _funnel(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    stages = words.funnel(analysis)
    if not stages:
        return []
    whole = stages[0][1]
    digits = len(f"{whole:,}")
    lines = [paint(BOLD, "From prompt to hit")]
    for stage, tokens in stages:
        line = f"{INDENT}{stage:<26}  {tokens:>{digits},}  {percent(tokens, whole):>7}"
        lines += wrap_columns(line, width)
    return lines


def _findings(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    if not analysis.findings:
        return [paint(BOLD, "No findings")]
    blocks = [
        _finding(number, finding, analysis, width, paint) for number, finding in enumerate(analysis.findings, start=1)
    ]
    lines = [paint(BOLD, f"Findings ({len(blocks):,})")]
    for block in blocks:
        lines.extend(["", *block])
    return lines


def _finding(number: int, finding: Finding, analysis: Analysis, width: int, paint: Paint) -> list[str]:
    hanging = " " * (len(str(number)) + 2)
    title = f"{number}. {sentence(finding.summary)} [{finding.rule}, {finding.severity}]"
    lines = [paint(BOLD, line) for line in wrap(title, width, hanging=hanging)]
    if finding.lookup is not None:
        lookup = analysis.lookups[finding.lookup]
        lines += _field("Seen at", _where(lookup), width)
        if finding.cause:
            lines += _field("Cause", finding.cause, width)
        for fact in words.also(finding):
            lines += _field("Also", fact, width)
        if lookup.needed_boundary and finding.tokens_lost:
            lines += boundary_table(lookup, width, INDENT * 2)
    else:
        lines += _field("Evidence", figures(finding.evidence), width)
    lines += _field("Fix", finding.fix, width)
    if finding.tokens_lost or finding.seconds_lost:
        lost = count(finding.tokens_lost, "token")
        if finding.seconds_lost:
            lost += f", {duration(finding.seconds_lost)} of prefill"
        lines += _field("Lost", lost, width)
    if len(finding.replicas) > 1:
        names = [shorten(replica, 24) for replica in finding.replicas[:6]]
        more = f" and {len(finding.replicas) - 6:,} more" if len(finding.replicas) > 6 else ""
        lines += wrap(f"Replicas {', '.join(names)}{more}", width, INDENT, INDENT + " " * 9)
    return lines


def _where(lookup: LookupResult) -> str:
    where = (
        f"request {lookup.request_id} on {lookup.replica}: hit {lookup.hit_tokens:,} of {lookup.prompt_tokens:,} tokens"
    )
    if not lookup.needed_boundary:
        return where
    where += f", a hit needed every group at {lookup.needed_boundary:,}"
    return where + (f", which {lookup.producer} had computed" if lookup.producer else "")


def _field(name: str, said: str, width: int) -> list[str]:
    label = f"{INDENT}{name:<8} "
    return wrap(sentence(said), width, label, " " * len(label)) or [label.rstrip()]


def _sequences(analysis: Analysis, width: int, paint: Paint) -> list[str]:
    if not analysis.sequences:
        return []
    shown = select_sequences(analysis)
    lines = [paint(BOLD, f"Sequences ({len(analysis.sequences):,})")]
    for sequence in shown:
        named = ", ".join(shorten(request, 24) for request in words.elided(sequence.requests))
        head = f"{printable(sequence.pattern)}: {named} ({sequence.shape}), hits {words.hits(sequence)}"
        where = words.where(sequence)
        lines += wrap(f"{head}, {where}" if where else head, width, INDENT, INDENT * 2)
        if sequence.cause:
            lines += wrap(sentence(sequence.cause), width, INDENT * 2)
    return lines + _more(len(analysis.sequences) - len(shown), "--format json lists them", width)


def _lookups(analysis: Analysis, lookups: Lookups, width: int, paint: Paint) -> list[str]:
    chosen = select_lookups(analysis, lookups)
    if not chosen:
        return []
    shown = chosen if lookups == "all" else worst(chosen)
    title = "Lookups" if lookups == "all" else "Lookups that lost more than is by design"
    header = ("request", "replica", "prompt", "hit", "predicted", "lost")
    rows = [
        (
            shorten(lookup.request_id, 20),
            shorten(lookup.replica, 14),
            f"{lookup.prompt_tokens:,}",
            f"{lookup.hit_tokens:,}",
            f"{lookup.predicted_hit_tokens:,}",
            ", ".join(f"{name} {tokens:,}" for name, tokens in ordered(lookup.lost)) or "-",
        )
        for lookup in shown
    ]
    lines = [paint(BOLD, line) for line in wrap(f"{title} ({len(chosen):,})", width)]
    lines += table(header, rows, ("<", "<", ">", ">", ">", "<"), width, INDENT)
    return lines + _more(len(chosen) - len(shown), "the worst are shown; --lookups all lists every lookup", width)


def _more(hidden: int, where: str, width: int) -> list[str]:
    return wrap(f"and {hidden:,} more: {where}", width, INDENT) if hidden else []
