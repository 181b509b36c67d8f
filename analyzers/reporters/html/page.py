"""Puts the page together: the template, the views of the analysis, the charts, and the charting library whole."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from analyzers.model import CLASSES, Analysis
from analyzers.reporters.html import charts, views
from analyzers.reporters.html.bars import COLORS, HIT
from analyzers.reporters.layout import count, duration, figures, percent, sentence
from analyzers.reporters.selection import Lookups


def render(analysis: Analysis, lookups: Lookups = "all") -> str:
    """Return the page, the same for the same analysis; `lookups` says which of them are listed."""
    environment = Environment(
        loader=PackageLoader("analyzers.reporters.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(tokens=_tokens, count=count, duration=duration, figures=figures, sentence=sentence)
    environment.globals["percent"] = percent
    chosen = views.choose(analysis, lookups)
    return environment.get_template("report.html.jinja").render(_context(analysis, chosen))


def _context(analysis: Analysis, chosen: views.Chosen) -> dict[str, Any]:
    templates = files("analyzers.reporters.html") / "templates"
    return {
        "style": (templates / "report.css").read_text(encoding="utf-8"),
        "script": (templates / "report.js").read_text(encoding="utf-8"),
        # A closing tag in a string of the library would end the element that it stands in.
        "library": get_plotlyjs().replace("</script", "<\\/script"),
        "colors": COLORS,
        "legend": [HIT, *(cls for cls in CLASSES if analysis.lost.get(cls))],
        "coverage": analysis.coverage,
        "heaps": views.heaps(analysis),
        "prompt_tokens": analysis.prompt_tokens,
        "prefill_seconds": analysis.prefill_seconds,
        "avoidable_seconds": analysis.avoidable_seconds,
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


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
