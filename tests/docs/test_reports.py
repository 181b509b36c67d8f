"""docs/analyze.md explains each section of each report, and each chart."""

import re

from analyzers.reporters import html, markdown_report, text
from analyzers.reporters.html.charts import all_charts
from docs.markdown import read, rows, sections
from tests.reporters.example import ANALYSIS

TEXT = sections(read("docs/analyze.md"))


def test_every_section_of_the_text_report() -> None:
    """A line that begins at the margin, is short and stands alone is a heading."""
    report = text.render(ANALYSIS, "losing") + text.render(ANALYSIS, "all")
    headings = set(re.findall(r"\n\n([A-Z][A-Za-z ]+?)(?: \(\d+\))?\n(?=[ \n])", report))
    assert {"Findings", "Fleet", "Block pools", "Sequences", "Lookups"} <= headings
    told = re.findall(r"\*\*(.+?)\*\*", TEXT["The text report"])
    assert {heading for heading in headings if not heading.startswith(("Of ", "Prefill"))} <= set(told)


def test_every_section_of_the_markdown_report() -> None:
    headings = re.findall(r"^## ([A-Z][a-z ]+)", markdown_report.render(ANALYSIS, "losing"), re.MULTILINE)
    assert headings
    for heading in headings:
        assert heading.strip() in TEXT["The text report"], heading


def test_every_section_and_chart_of_the_html_report() -> None:
    told = [row[0].partition(" ...")[0] for row in rows(TEXT["The HTML report"])]
    headings = re.findall(r"<h2 id=[^>]+>([A-Za-z]+)", html.render(ANALYSIS))
    charts = [chart.title for chart in all_charts(ANALYSIS)]
    assert len(headings) >= 7
    assert len(charts) >= 5
    for title in (*headings, *charts):
        assert any(title.startswith(each) for each in told), title
