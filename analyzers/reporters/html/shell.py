"""What every page has: the template engine, the style, the script and the charting library whole."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from analyzers.reporters import words
from analyzers.reporters.html.bars import COLORS
from analyzers.reporters.layout import count, duration, figures, percent, sentence


def render_page(template: str, context: dict[str, Any]) -> str:
    """Return a page; whatever the context holds is text in it."""
    environment = Environment(
        loader=PackageLoader("analyzers.reporters.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(tokens=_tokens, count=count, duration=duration, figures=figures, sentence=sentence)
    environment.filters.update(elided=words.elided, hits=words.hits, where=words.where)
    environment.globals["percent"] = percent
    return environment.get_template(template).render(_shared() | context)


def _shared() -> dict[str, Any]:
    templates = files("analyzers.reporters.html") / "templates"
    return {
        "style": (templates / "report.css").read_text(encoding="utf-8"),
        "script": (templates / "report.js").read_text(encoding="utf-8"),
        # A closing tag in a string of the library would end the element that it stands in.
        "library": get_plotlyjs().replace("</script", "<\\/script"),
        "colors": COLORS,
    }


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
