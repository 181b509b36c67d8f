"""The Markdown report: whatever a capture says is text in it, and a table stays a table."""

import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.model import Analysis
from analyzers.reporters import text as text_report
from analyzers.reporters.markdown import escape, markdown_table
from analyzers.reporters.markdown_report import render
from tests.reporters.example import ANALYSIS, COLD, EMPTY, REPEAT, analyses


def columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


@given(st.lists(st.lists(st.text(max_size=20), min_size=3, max_size=3), max_size=4))
def test_a_table_has_a_line_per_row_and_as_many_columns_in_each(rows: list[list[str]]) -> None:
    lines = markdown_table(("a", "b", "c"), rows, "<>>").split("\n")
    assert len(lines) == 2 + len(rows)
    assert {columns(line) for line in lines} == {4}
    assert lines[1] == "| --- | --: | --: |"


@given(st.text())
def test_text_is_no_markup(text: str) -> None:
    shown = escape(text)
    assert not re.search(r"[<>\n]", shown)
    assert not re.search(r"(?<!\\)[`*_\[\]|]", re.sub(r"\\\\", "", shown))


@settings(deadline=None, max_examples=40)
@given(analyses())
def test_any_analysis_can_be_written(analysis: Analysis) -> None:
    text = render(analysis, "all")
    assert text.startswith("# Why prompt tokens were computed\n\n")
    tables = [line for line in text.split("\n") if line.startswith("|")]
    assert tables


def test_the_model_case() -> None:
    text = render(ANALYSIS)
    assert "| - shifted\\_boundary | 9,600 | 40.3 % |" in text
    assert "- lost: 9,600 tokens, 0.5 to 1.2 s of prefill" in text
    assert "| 0-2 | mamba | 1,600 | 9,600 | 0 | - | - |" in text
    cause = "The state at 9,600 was computed, but the retention mask refused it"
    assert f"| never hits | identical | cold-0, repeat-0 | 0, 0 |  | {cause} |" in text
    assert "| repeat-0 | r0 | 11,910 | 0 | 0 | tail 710, speculative\\_drop 1,600, shifted\\_boundary 9,600 |" in text
    assert "| held on some replica | 11,200 | 47.0 % |" in text
    assert "## Findings (0)" in render(EMPTY)


def test_it_lists_what_the_text_lists() -> None:
    """The same sequences, and of many lookups those that lost most; other causes of a loss as well."""
    plain = [replace(ANALYSIS.sequences[1], requests=[f"p{number}", "q"]) for number in range(9)]
    worse = replace(REPEAT, request_id="worst", lost={"evicted": 11910})
    finding = replace(ANALYSIS.findings[0], evidence={"also": ["group 2 lost it too"]})
    many = replace(
        ANALYSIS, sequences=[*plain, ANALYSIS.sequences[0]], lookups=[COLD, REPEAT, *[REPEAT] * 60, worse],
        findings=[finding],
    )  # fmt: skip
    markdown, plain_text = render(many), text_report.render(many)
    for number in range(9):
        assert (f"p{number}, q" in markdown) == (f"p{number}, q" in plain_text) == (number < 5)
    assert "never hits" in markdown
    assert markdown.count("| repeat-0 | r0 |") == plain_text.count("  repeat-0  r0") == 49
    assert "| worst | r0 |" in markdown
    assert "- also: group 2 lost it too" in markdown
