"""The analysis as text for a terminal or a ticket: one line of coverage, the heaps, the findings, then details."""

from collections.abc import Mapping, Sequence

from analyzers.model import CLASSES, Analysis, Coverage, Finding, LookupResult
from analyzers.reporters.boundaries import boundary_table
from analyzers.reporters.layout import count, percent, printable, sentence, shorten, table, wrap, wrap_columns
from analyzers.reporters.selection import Lookups, avoidable, by_design, select_lookups, uncertain

MAX_ROWS = 50
"""Rows of a list that is shown without having been asked for in full."""
INDENT = "  "
BOLD, RED, GREEN, YELLOW, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


def render(analysis: Analysis, lookups: Lookups = "losing", width: int = 80, color: bool = False) -> str:
    """Return the report, its lines at most `width` characters wide.

    Args:
        analysis: what to report.
        lookups: which lookups are listed: `losing` are those that lost more than is by design.
        width: at least 40.
        color: mark headings and heaps with ANSI colours.

    """
    paint = _Paint(color)
    sections = [
        _coverage(analysis.coverage, width),
        _heaps(analysis, width, paint),
        _findings(analysis, width, paint),
        _sequences(analysis, width, paint),
        _lookups(analysis, lookups, width, paint),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


class _Paint:
    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, code: str, line: str) -> str:
        return f"{code}{line}{PLAIN}" if self._color else line


def _coverage(coverage: Coverage, width: int) -> list[str]:
    line = (
        f"{count(coverage.spans, 'span')}, {count(coverage.replicas, 'replica')}, {count(coverage.lookups, 'lookup')}; "
        f"{count(coverage.missing_records, 'missing record')}, {count(coverage.skipped_lines, 'skipped line')}"
    )
    return wrap(line, width)


def _heaps(analysis: Analysis, width: int, paint: _Paint) -> list[str]:
    prompt = analysis.prompt_tokens
    rows: list[tuple[str, str, int]] = [(GREEN, "served from cache", analysis.hit_tokens)]
    for code, title, losses in (
        (PLAIN, "lost by design", by_design(analysis.lost)),
        (RED, "avoidable", avoidable(analysis.lost)),
        (YELLOW, "not accounted for", uncertain(analysis.lost)),
    ):
        if title == "not accounted for" and not any(losses.values()):
            continue
        rows.append((code, title, sum(losses.values())))
        rows.extend((PLAIN, INDENT + name, tokens) for name, tokens in _ordered(losses))
    names = max(len(title) for _, title, _ in rows)
    digits = max(len(f"{tokens:,}") for _, _, tokens in rows)
    lines = [paint(BOLD, f"Of {count(prompt, 'prompt token')}")]
    for code, title, tokens in rows:
        line = f"{INDENT}{title:<{names}}  {tokens:>{digits},}  {percent(tokens, prompt):>7}".rstrip()
        lines.extend(line if code == PLAIN else paint(code, line) for line in wrap_columns(line, width))
    return lines


def _ordered(lost: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return losses in the order of the ladder, those without a token left out."""
    return [(name, lost[name]) for name in (*CLASSES, *sorted(set(lost) - set(CLASSES))) if lost.get(name)]


def _findings(analysis: Analysis, width: int, paint: _Paint) -> list[str]:
    if not analysis.findings:
        return [paint(BOLD, "No findings")]
    blocks = [
        _finding(number, finding, analysis, width, paint) for number, finding in enumerate(analysis.findings, start=1)
    ]
    lines = [paint(BOLD, f"Findings ({len(blocks):,})")]
    for block in blocks:
        lines.extend(["", *block])
    return lines


def _finding(number: int, finding: Finding, analysis: Analysis, width: int, paint: _Paint) -> list[str]:
    hanging = " " * (len(str(number)) + 2)
    lines = [paint(BOLD, line) for line in wrap(f"{number}. {sentence(finding.summary)}", width, hanging=hanging)]
    if finding.lookup is not None:
        lookup = analysis.lookups[finding.lookup]
        lines += _field("Seen at", _where(lookup), width)
        if finding.cause:
            lines += _field("Cause", finding.cause, width)
        if lookup.needed_boundary:
            lines += boundary_table(lookup, width, INDENT * 2)
    else:
        lines += _field("Evidence", "; ".join(f"{key}: {finding.evidence[key]}" for key in finding.evidence), width)
    lines += _field("Fix", finding.fix, width)
    lines += _field("Lost", f"{count(finding.tokens_lost, 'token')}", width)
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


def _sequences(analysis: Analysis, width: int, paint: _Paint) -> list[str]:
    if not analysis.sequences:
        return []
    # In time, but those with something to say first.
    shown = sorted(analysis.sequences, key=lambda sequence: not sequence.cause)[:MAX_ROWS]
    lines = [paint(BOLD, f"Sequences ({len(analysis.sequences):,})")]
    for sequence in shown:
        names = [shorten(request, 24) for request in _ends(sequence.requests)]
        hits = [f"{hit:,}" for hit in sequence.hits[:8]] + ["..."] * (len(sequence.hits) > 8)
        head = f"{printable(sequence.pattern)}: {', '.join(names)} ({sequence.shape}), hits {', '.join(hits)}"
        lines += wrap(head, width, INDENT, INDENT * 2)
        if sequence.cause:
            lines += wrap(sentence(sequence.cause), width, INDENT * 2)
    return lines + _more(len(analysis.sequences) - len(shown), "--format json lists them", width)


def _ends(requests: Sequence[str]) -> list[str]:
    """Return the ids of a sequence's requests, of a long one the first and the last."""
    return list(requests) if len(requests) <= 4 else [requests[0], f"... {len(requests) - 2} more ...", requests[-1]]


def _lookups(analysis: Analysis, lookups: Lookups, width: int, paint: _Paint) -> list[str]:
    chosen = select_lookups(analysis, lookups)
    if not chosen:
        return []
    shown = chosen if lookups == "all" else _worst(chosen, MAX_ROWS)
    title = "Lookups" if lookups == "all" else "Lookups that lost more than is by design"
    header = ("request", "replica", "prompt", "hit", "predicted", "lost")
    rows = [
        (
            shorten(lookup.request_id, 20),
            shorten(lookup.replica, 14),
            f"{lookup.prompt_tokens:,}",
            f"{lookup.hit_tokens:,}",
            f"{lookup.predicted_hit_tokens:,}",
            ", ".join(f"{name} {tokens:,}" for name, tokens in _ordered(lookup.lost)) or "-",
        )
        for lookup in shown
    ]
    lines = [paint(BOLD, line) for line in wrap(f"{title} ({len(chosen):,})", width)]
    lines += table(header, rows, ("<", "<", ">", ">", ">", "<"), width, INDENT)
    return lines + _more(len(chosen) - len(shown), "the worst are shown; --lookups all lists every lookup", width)


def _worst(lookups: Sequence[LookupResult], most: int) -> list[LookupResult]:
    """Return the lookups that lost most, at most so many, in their own order."""

    def lost(index: int) -> int:
        counted = {**avoidable(lookups[index].lost), **uncertain(lookups[index].lost)}
        return sum(map(abs, counted.values()))

    worst = sorted(range(len(lookups)), key=lambda index: (-lost(index), index))[:most]
    return [lookups[index] for index in sorted(worst)]


def _more(hidden: int, where: str, width: int) -> list[str]:
    return wrap(f"and {hidden:,} more: {where}", width, INDENT) if hidden else []
