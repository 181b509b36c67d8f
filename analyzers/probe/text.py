"""A probe as text: the verdict, a line per shape, the servers side by side, and what is missing."""

from collections.abc import Sequence

from analyzers.probe.compare import summarize
from analyzers.probe.model import HIT, INCONCLUSIVE, UNRELATED, Comparison, Observation, Report, ServerReport
from analyzers.reporters.boundaries import boundary_table
from analyzers.reporters.layout import INDENT, Align, count, percent, sentence, table, wrap
from analyzers.reporters.paint import BOLD, GREEN, RED, YELLOW, Paint


def render(report: Report, width: int = 100, color: bool = False) -> str:
    """Return the report, its lines at most `width` characters wide."""
    paint = Paint(color)
    main = report.servers[0]
    sections = [
        _head(report, width),
        _verdict(main, width, paint),
        _shapes(main, width, paint),
        *(_shapes(server, width, paint) for server in report.servers[1:]),
        _side_by_side(report.servers, width, paint),
        _outputs(report.servers, width, paint),
        _notes(report.servers, width, paint),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _head(report: Report, width: int) -> list[str]:
    main, sizes = report.servers[0], report.sizes
    grid = (
        f"hits can end at multiples of {sizes.grid:,} (by {_SOURCE[sizes.source]})"
        if sizes.grid
        else "where hits can end is not known"
    )
    return wrap(
        f"{main.url}, model {main.model}: {count(len(main.observations), 'request')} one after the other, prompts of "
        f"{count(sizes.prompt_tokens, 'token')} made of {report.form}; {grid}; cached tokens by "
        f"{', '.join(main.sources) or 'nothing but the time'}",
        width,
    )


_SOURCE = {
    "spans": "the server's spans",
    "flag": "--block-size",
    "measured": "what was measured",
    "metrics": "/metrics",
    "unknown": "nothing",
}


def _verdict(server: ServerReport, width: int, paint: Paint) -> list[str]:
    verdict = server.verdict
    color = GREEN if verdict.kind == HIT else YELLOW if verdict.kind == INCONCLUSIVE else RED
    lines = [paint(color, line) for line in wrap(f"Verdict: {verdict.says}", width, "", INDENT)]
    shapes = [shape.shape for shape in server.shapes if (shape.kind, shape.cause) == (verdict.kind, verdict.cause)]
    lines += wrap(f"Seen at: {', '.join(shapes)}", width, INDENT, INDENT * 2)
    if verdict.fix:
        lines += wrap(f"Fix: {sentence(verdict.fix)}", width, INDENT, INDENT * 2)
    repeat = next(
        (one for one in server.observations if one.send.shape == verdict.shape and one.send.number == 1), None
    )
    if verdict.kind != HIT and repeat is not None and repeat.lookup is not None:
        lines += boundary_table(repeat.lookup, width, INDENT * 2)
    return lines


_HEADER = ("shape", "shared", "expected", "hits", "first token, ms", "")
_ALIGNED: tuple[Align, ...] = ("<", ">", ">", "<", "<", "<")


def _shapes(server: ServerReport, width: int, paint: Paint) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for shape in server.shapes:
        sends = [one for one in server.observations if one.send.shape == shape.shape]
        expected = "-" if shape.expected is None else f"{shape.expected:,}"
        rows.append((shape.shape, f"{sends[1].send.shared:,}", expected, *_figures(sends), shape.kind))
    unrelated = [one for one in server.observations if one.send.shape == UNRELATED]
    rows.append((UNRELATED, "0", "0", *_figures(unrelated), ""))
    heading = paint(BOLD, f"Sends to {server.url} ({server.role})")
    return [heading, *table(_HEADER, rows, _ALIGNED, width, INDENT)]


def _figures(sends: Sequence[Observation]) -> tuple[str, str]:
    hits = " ".join("?" if one.hit is None else f"{one.hit:,}" for one in sends)
    return hits, " ".join(f"{1e3 * one.answer.time_to_first_token:,.0f}" for one in sends)


def _side_by_side(servers: Sequence[ServerReport], width: int, paint: Paint) -> list[str]:
    if len(servers) == 1:
        return []
    rows = []
    for server in servers:
        summary = summarize(server.observations)
        rows.append(
            (
                server.role,
                f"{1e3 * summary.cold:,.0f}",
                f"{1e3 * summary.repeats:,.0f}",
                f"{summary.throughput:,.1f}",
                "-" if summary.hit_rate is None else percent(round(1e4 * summary.hit_rate), 10_000),
                "-" if summary.acceptance is None else percent(round(1e4 * summary.acceptance), 10_000),
                server.verdict.kind,
            )
        )
    header = ("server", "cold, ms", "repeats, ms", "output tokens/s", "hit rate", "acceptance", "verdict")
    aligned: tuple[Align, ...] = ("<", ">", ">", ">", ">", ">", "<")
    return [paint(BOLD, "Side by side (medians of the time to the first token)"), *table(header, rows, aligned, width)]


def _outputs(servers: Sequence[ServerReport], width: int, paint: Paint) -> list[str]:
    lines = []
    for server in servers:
        lines += _compared(f"{server.role}: repeats and their first send", server.comparison, width)
        if server.against is not None:
            lines += _compared(f"{server.role} and {servers[0].role}", server.against, width)
    return [paint(BOLD, "Answers to the same prompt at temperature 0"), *lines]


def _compared(what: str, comparison: Comparison, width: int) -> list[str]:
    same = comparison.compared - len(comparison.differing)
    text = f"{what}: {same} of {comparison.compared} equal, by {comparison.by}"
    if comparison.differing:
        first = comparison.differing[0]
        text += f"; the first that differs: {first['shape']} {first['sends'][1]}, from output {first['at']} on"
    return wrap(text, width, INDENT, INDENT * 2)


def _notes(servers: Sequence[ServerReport], width: int, paint: Paint) -> list[str]:
    several = len(servers) > 1
    texts = [f"{server.role}: {note}" if several else note for server in servers for note in server.notes]
    if not texts:
        return []
    return [
        paint(BOLD, "Missing"),
        *(line for text in texts for line in wrap(sentence(text), width, INDENT, INDENT * 2)),
    ]
