"""A sweep as one HTML file: what each setting reuses against what it costs, the Pareto choices marked."""

from collections.abc import Sequence

import plotly.graph_objects as go

from analyzers.experiments.sweep import Measured
from analyzers.reporters import sweep
from analyzers.reporters.html.bars import COLORS, HIT
from analyzers.reporters.html.charts import Chart, chart
from analyzers.reporters.html.shell import render_page
from analyzers.reporters.layout import printable

MAX_LABEL = 40


def render(rows: Sequence[Measured]) -> str:
    """Return the page, the same for the same rows."""
    header, cells = sweep.table_of(rows)
    own = sweep.routed(rows)
    found = {
        "varied": sweep.varied_of(rows),
        "best": sum(row.pareto for row in rows),
        "refused": sum(bool(row.refused) for row in rows),
        "charts": [_price(rows), _reuse(rows)],
        "legend": sweep.legend(rows),
        "refusals": sweep.refusals(rows),
        "header": header,
        "rows": [
            list(zip(texts, _values(row, len(texts), own), strict=True)) for row, texts in zip(rows, cells, strict=True)
        ],
    }
    return render_page("sweep.html.jinja", found)


def _values(row: Measured, columns: int, own: bool) -> list[int | None]:
    """Return by what each cell is sorted: a number, or None where its text is what counts."""
    if row.refused:
        return [None] * columns
    varied = [value if isinstance(value, int) else None for value in sweep.varied_values(row)]
    costs = [row.prefill, sum(row.cached.values()), sum(row.evicted.values()), row.warm]
    last = [row.first[0], *[row.own[0]] * own, row.later[0], *costs]
    return [*varied, None, *last, *[None] * (columns - len(varied) - 1 - len(last))]


def _label(row: Measured, rows: Sequence[Measured]) -> str:
    """Return the setting in words: what is varied in it, with vLLM's version where that is."""
    names = [f"{sweep.NAMES[name]} {row.varied[name]}" for name in sweep.NAMES if name in row.varied]
    if len({other.version for other in rows if other.version}) > 1 or not names:
        names.append(f"vLLM {row.version}")
    return printable(", ".join(names))


def _price(rows: Sequence[Measured]) -> Chart:
    ran = [row for row in rows if not row.refused]
    figure = go.Figure()
    for name, symbol, color, chosen in (
        ("Pareto choice", "star", COLORS[HIT], [row for row in ran if row.pareto]),
        ("another setting does better", "circle-open", "#8a94a6", [row for row in ran if not row.pareto]),
    ):
        if chosen:
            figure.add_scatter(
                name=name,
                mode="markers",
                x=[sum(row.cached.values()) for row in chosen],
                y=[row.first[0] + row.later[0] for row in chosen],
                marker={"symbol": symbol, "size": 14, "color": color, "line": {"width": 2, "color": color}},
                text=[_hover(row, rows) for row in chosen],
                hovertemplate="%{text}<br>%{y:,} tokens reused, %{x:,} blocks<extra></extra>",
            )
    figure.update_layout(xaxis_title="cached blocks at the most", yaxis_title="tokens reused", showlegend=True)
    return chart(
        "price", "Reuse against price",
        "Tokens that repeats were given from the cache, and the blocks that were cached at the most for it. A star: no "
        "other setting reuses as much, caches as few blocks and evicts as few, and is better in one of these.",
        figure, ("setting", "cached blocks", "evicted blocks", "tokens reused", "Pareto choice"),
        (
            (_label(row, rows), sum(row.cached.values()), sum(row.evicted.values()), row.first[0] + row.later[0],
             "yes" if row.pareto else "no")
            for row in ran
        ),
    )  # fmt: skip


def _hover(row: Measured, rows: Sequence[Measured]) -> str:
    return f"{_plain(_label(row, rows))}<br>{sum(row.evicted.values()):,} blocks evicted"


def _plain(text: str) -> str:
    """Return `text` as Plotly shows it as it is: it takes some tags for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _reuse(rows: Sequence[Measured]) -> Chart:
    ran = [row for row in rows if not row.refused]
    labels = [_label(row, rows) for row in ran]
    parts = {"first repeats": [row.first for row in ran], "later repeats": [row.later for row in ran]}
    colors = {"first repeats": COLORS[HIT], "later repeats": "#7fc97f"}
    # Two settings that are cut alike stay two bars: Plotly goes by the numbers, and writes the names beside them.
    places = list(range(len(ran)))
    figure = go.Figure(
        [go.Bar(name=name, x=places, y=[hit for hit, _ in pairs], marker_color=colors[name])
         for name, pairs in parts.items()]
    )  # fmt: skip
    short = [label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…" for label in labels]
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": [_plain(label) for label in short]}
    figure.update_layout(barmode="stack", yaxis_title="tokens reused", xaxis=ticks)
    return chart(
        "reuse", "Reuse by setting", "Tokens that first and later repeats were given from the cache.",
        figure, ("setting", "first repeats", "of", "later repeats", "of"),
        ((label, *row.first, *row.later) for label, row in zip(labels, ran, strict=True)),
    )  # fmt: skip
