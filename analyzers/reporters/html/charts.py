"""The charts, as Plotly figures and as the figures behind them, for those who cannot see a picture or want to copy."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from analyzers.model import CLASSES, Analysis, Capacity
from analyzers.reporters import words
from analyzers.reporters.html.bars import COLORS, HIT

MOMENTS = 60
MAX_HEAT_FAMILIES = 40


@dataclass(frozen=True)
class Chart:
    """A picture and its table.

    Attributes:
        name: for its element.
        says: one sentence on what is seen.
        figure: for Plotly, `data` and `layout`.
        header, rows: the same as a table.

    """

    name: str
    title: str
    says: str
    figure: dict[str, Any] = field(repr=False)
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


def all_charts(analysis: Analysis) -> list[Chart]:
    """Return the charts for which the analysis has something to show."""
    found = [_funnel(analysis), _over_time(analysis), _regret(analysis)]
    for number, capacity in enumerate(analysis.capacity):
        found += [_occupancy(number, capacity), _evictions(number, capacity)]
    return [each for each in found if each is not None]


def chart(name: str, title: str, says: str, figure: go.Figure, header: Sequence[str], rows: Any) -> Chart:
    """Return a chart of a figure of Plotly's, and of its rows as they come."""
    return Chart(name, title, says, json.loads(figure.to_json()), header, list(rows))


def _funnel(analysis: Analysis) -> Chart | None:
    left = words.funnel(analysis)
    if not left:
        return None
    stages, tokens = [stage for stage, _ in left], [each for _, each in left]
    figure = go.Figure(go.Funnel(y=stages, x=tokens, textinfo="value+percent initial", marker_color=COLORS[HIT]))
    return chart(
        "funnel", "From prompt to hit", "Tokens of all prompts that were left at each stage.",
        figure, ("stage", "tokens"), left,
    )  # fmt: skip


def _over_time(analysis: Analysis) -> Chart | None:
    lookups = analysis.lookups
    if not lookups:
        return None
    begin, end = min(each.time for each in lookups), max(each.time for each in lookups)
    width = max((end - begin) / MOMENTS, 1)
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * MOMENTS)
    for lookup in lookups:
        slot = min(int((lookup.time - begin) / width), MOMENTS - 1)
        sums[HIT][slot] += lookup.hit_tokens
        for cls, tokens in lookup.lost.items():
            sums[cls][slot] += max(0, tokens)
    starts = [round(slot * width / 1e9, 6) for slot in range(MOMENTS)]
    shown = [cls for cls in (HIT, *CLASSES) if any(sums[cls])]
    figure = go.Figure([go.Bar(name=cls, x=starts, y=sums[cls], marker_color=COLORS[cls]) for cls in shown])
    figure.update_layout(barmode="stack", xaxis_title="seconds since the first lookup", yaxis_title="prompt tokens")
    rows = ((start, *(sums[cls][slot] for cls in shown)) for slot, start in enumerate(starts))
    return chart(
        "time", "Losses over time", "Prompt tokens of the lookups in each stretch of time, by what became of them.",
        figure, ("seconds", *shown), [row for row in rows if any(row[1:])],
    )  # fmt: skip


def _regret(analysis: Analysis) -> Chart | None:
    if analysis.fleet is None:
        return None
    replicas = sorted({lookup.replica for lookup in analysis.lookups})
    sums: dict[tuple[str, str], int] = defaultdict(int)
    families: dict[str, int] = defaultdict(int)
    for lookup in analysis.lookups:
        sums[lookup.family, lookup.replica] += lookup.regret_tokens
        families[lookup.family] += lookup.regret_tokens
    worst = sorted((family for family in families if families[family]), key=lambda each: (-families[each], each))
    worst = worst[:MAX_HEAT_FAMILIES]
    if not worst:
        return None
    table = [[sums[family, replica] for replica in replicas] for family in worst]
    # Two names that are cut alike stay two rows: Plotly goes by the numbers, and writes the names beside them.
    figure = go.Figure(go.Heatmap(z=table, colorscale="YlOrRd", colorbar_title="tokens"))
    figure.update_layout(
        xaxis={"tickmode": "array", "tickvals": list(range(len(replicas))), "ticktext": [_cut(r) for r in replicas]},
        yaxis={
            "tickmode": "array", "tickvals": list(range(len(worst))), "ticktext": [_cut(family) for family in worst],
            "autorange": "reversed",
        },
        height=220 + 18 * len(worst),
    )  # fmt: skip
    return chart(
        "regret", "Regret by replica and family",
        "Tokens that another replica would have hit, by the replica that was chosen and the family of the request.",
        figure, ("family", *replicas), ((family, *row) for family, row in zip(worst, table, strict=True)),
    )  # fmt: skip


def _occupancy(number: int, capacity: Capacity) -> Chart | None:
    if not capacity.occupancy:
        return None
    times = [ms / 1e3 for ms, _ in capacity.occupancy]
    names = [f"group {group.group} ({group.kind})" for group in capacity.groups]
    lines = [
        go.Scatter(name=name, x=times, y=[blocks[index] for _, blocks in capacity.occupancy], stackgroup="pool")
        for index, name in enumerate(names)
    ]
    figure = go.Figure(lines)
    figure.update_layout(xaxis_title="seconds since the first lookup", yaxis_title="cached blocks")
    return chart(
        f"occupancy-{number}", f"Cached blocks on {capacity.replica}",
        f"Blocks with a key by group, of a pool of {capacity.num_blocks:,}.",
        figure, ("seconds", *names), ((time, *blocks) for time, (_, blocks) in zip(times, capacity.occupancy,
                                                                                   strict=True)),
    )  # fmt: skip


def _evictions(number: int, capacity: Capacity) -> Chart | None:
    if not capacity.evictions:
        return None
    groups = [group.group for group in capacity.groups]
    takers: list[int | None] = [*groups, *([None] if any(each.by is None for each in capacity.evictions) else [])]
    blocks = {(each.by, each.of): each.blocks for each in capacity.evictions}
    table = [[blocks.get((by, of), 0) for of in groups] for by in takers]
    rows = ["not known" if by is None else f"group {by}" for by in takers]
    columns = [f"group {of}" for of in groups]
    figure = go.Figure(go.Heatmap(z=table, x=columns, y=rows, colorscale="YlOrRd", texttemplate="%{z:,}"))
    figure.update_layout(xaxis_title="lost the block", yaxis_title="was given it", height=260 + 30 * len(rows))
    return chart(
        f"evictions-{number}", f"Whose allocations pushed out whose blocks on {capacity.replica}",
        "Cached blocks by the group that was given them and the group that lost them.",
        figure, ("was given the block", *columns), ((row, *line) for row, line in zip(rows, table, strict=True)),
    )  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
