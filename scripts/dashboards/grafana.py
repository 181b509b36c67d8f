"""Dashboards as data, and Grafana's JSON of them, by Grafana's own typed builders."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, text, timeseries
from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of Grafana's grid."""
PRODUCT = "otel-cache"


@dataclass(frozen=True)
class Query:
    """An expression, with the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard.

    Attributes:
        kind: `lines`, `stack`, `number` or `heatmap`.
        unit: Grafana's id of the unit, such as `percentunit`.
        alert: the alert whose runbook it links to.
        width, height: in Grafana's grid.
        maximum: top of the axis; None: as the values have it.

    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: str = "lines"
    alert: str = ""
    width: int = 12
    height: int = 8
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Attributes:
        uid: its address, and the name of its file.
        variables: those besides the data source: name, label, and the query for its values.
        many: whether more than one value of the last of them can be chosen.

    """

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str, str]] = ()
    many: bool = True


def render(board: Board, runbook: dict[str, int]) -> str:
    """Return a dashboard's JSON; `runbook` has the number of each alert's panel in the runbook's dashboard."""
    made = _dashboard(board).variables([_datasource(), *_variables(board)])
    number = y = 0
    for row in board.rows:
        number += 1
        place = dashboard.GridPos(x=0, y=y, w=WIDTH, h=1)
        made = made.with_row(build.Row(row.title).id(number).grid_pos(place))
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            number += 1
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            place = dashboard.GridPos(x=x, y=y, w=panel.width, h=panel.height)
            made = made.with_panel(_panel(panel, runbook).id(number).grid_pos(place))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return encode(made.build())


def render_texts(board: Board, texts: Sequence[tuple[str, str]]) -> str:
    """Return the JSON of a dashboard that holds Markdown texts, each under a title, in panels numbered from 1."""
    made = _dashboard(board)
    for number, (title, content) in enumerate(texts, 1):
        lines = sum(1 + len(line) // 100 for line in content.splitlines())
        panel = text.Panel().id(number).title(title).content(content).span(WIDTH).height(3 + lines)
        made = made.with_panel(panel.mode(TextMode.MARKDOWN))
    return encode(made.build())


def encode(made: dashboard.Dashboard) -> str:
    """Return a dashboard as JSON."""
    return json.dumps(made, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _dashboard(board: Board) -> build.Dashboard:
    return (
        build.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([PRODUCT])
        .readonly()
        .refresh("1m")
        .time("now-6h", "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(build.DashboardLink(PRODUCT).type(dashboard.DashboardLinkType.DASHBOARDS).tags([PRODUCT]).keep_time(True))
    )


def _datasource() -> build.DatasourceVariable:
    return build.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _variables(board: Board) -> list[build.QueryVariable]:
    made = []
    for position, (name, title, query) in enumerate(board.variables, 1):
        variable = build.QueryVariable(name).label(title).datasource(DATASOURCE).query(query)
        variable = variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        variable = variable.sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        if board.many or position < len(board.variables):
            variable = variable.multi(True).include_all(True).all_value(".*")
            everything = dashboard.VariableOption(text="All", value="$__all", selected=True)
            variable = variable.current(everything)
        made.append(variable)
    return made


def _panel(panel: Panel, runbook: dict[str, int]) -> Any:
    # The builders of the kinds have these methods in common, and no base class that says so.
    made: Any = {"lines": _lines, "stack": _stack, "number": _number, "heatmap": _heatmap}[panel.kind](panel)
    made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE)
    if panel.maximum is not None:
        made = made.max(panel.maximum)
    for query in panel.queries:
        made = made.with_target(_target(query, panel.kind))
    if panel.alert:
        link = build.DashboardLink(f"Runbook: {panel.alert}").type(dashboard.DashboardLinkType.LINK)
        made = made.links([link.url(f"/d/{PRODUCT}-runbook?viewPanel=panel-{runbook[panel.alert]}")])
    return made


def _target(query: Query, kind: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    if kind == "number":
        return made.instant()
    return made.range().format(PromQueryFormat.HEATMAP if kind == "heatmap" else PromQueryFormat.TIME_SERIES)


def _lines(_: Panel) -> timeseries.Panel:
    legend = VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.BOTTOM)
    tooltip = VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    made = timeseries.Panel().legend(legend.show_legend(True).calcs(["lastNotNull", "max"])).tooltip(tooltip)
    return made.fill_opacity(8).show_points(common.VisibilityMode.NEVER).min(0)


def _stack(panel: Panel) -> timeseries.Panel:
    return _lines(panel).fill_opacity(60).stacking(StackingConfig().mode(common.StackingMode.NORMAL))


def _number(_: Panel) -> stat.Panel:
    return stat.Panel().graph_mode(common.BigValueGraphMode.NONE)


def _heatmap(panel: Panel) -> heatmap.Panel:
    axis = heatmap.YAxisConfig().unit(panel.unit).axis_placement(common.AxisPlacement.LEFT)
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    return heatmap.Panel().y_axis(axis).color(colour).calculate(False)
