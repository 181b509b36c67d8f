"""The report's page: the views of the analysis and the charts."""

from typing import Any

from analyzers.model import CLASSES, Analysis
from analyzers.reporters import words
from analyzers.reporters.html import charts, views
from analyzers.reporters.html.bars import HIT
from analyzers.reporters.html.shell import render_page
from analyzers.reporters.selection import Lookups


def render(analysis: Analysis, lookups: Lookups = "all") -> str:
    """Return the page, the same for the same analysis; `lookups` says which of them are listed."""
    return render_page("report.html.jinja", _context(analysis, views.choose(analysis, lookups)))


def _context(analysis: Analysis, chosen: views.Chosen) -> dict[str, Any]:
    return {
        "legend": [HIT, *(cls for cls in CLASSES if analysis.lost.get(cls))],
        "coverage": analysis.coverage,
        "heaps": views.heaps(analysis),
        "prompt_tokens": analysis.prompt_tokens,
        "prefill": words.prefill(analysis),
        "findings": views.findings(analysis, chosen),
        "charts": charts.all_charts(analysis),
        "families": views.families(analysis, chosen),
        "sequences": views.sequences(analysis),
        "rows": views.rows(analysis, chosen),
        "left_out": chosen.left_out,
        "details": views.details(analysis, chosen),
        "replicas": views.replicas(analysis),
        "fleet": analysis.fleet,
    }
