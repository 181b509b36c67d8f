"""The HTML report without a browser: whatever a capture says is text in it, and nothing in it needs a network."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from analyzers import model
from analyzers.model import Analysis, LookupResult
from analyzers.reporters import html
from analyzers.reporters.html.bars import COLORS, HIT, segments
from analyzers.reporters.html.views import MAX_ROWS
from tests.reporters.example import ANALYSIS, EMPTY, REPEAT, analyses

LIBRARY = get_plotlyjs().replace("</script", "<\\/script")
ELEMENTS = {
    "a", "article", "body", "button", "dd", "details", "div", "dl", "dt", "figcaption", "figure", "h1", "h2", "h3",
    "head", "header", "html", "input", "label", "li", "main", "meta", "nav", "output", "p", "script", "section", "span",
    "style", "summary", "table", "tbody", "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip
VOID = {"meta", "input"}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'--><b>&amp;{{ 7 * 7 }}"


class Page(HTMLParser):
    """What a browser makes of a page, as far as it matters here."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert text.count(LIBRARY) == 1
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.figures: list[object] = []
        self.text: list[str] = []
        self.feed(text.replace(LIBRARY, ""))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.elements[-1][1].get("class") == "figure":
            self.figures.append(json.loads(data))
        self.text.append(data)


def check(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert tag in ELEMENTS
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action", "srcset")]
        if (target := attributes.get("href")) is not None:
            assert target.startswith("#")
            assert target[1:] in ids
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert len(scripts) == 2 + len(page.figures)


@settings(max_examples=25, deadline=None)
@given(analyses())
def test_any_analysis_is_text_in_it(analysis: Analysis) -> None:
    check(Page(html.render(analysis)))


@pytest.mark.parametrize("analysis", [EMPTY, ANALYSIS])
def test_it_is_the_same_for_the_same_analysis(analysis: Analysis) -> None:
    assert html.render(analysis) == html.render(analysis)
    check(Page(html.render(analysis)))


def test_markup_in_names_is_shown_and_not_run() -> None:
    hostile = replace(REPEAT, request_id=HOSTILE, replica=HOSTILE, family=HOSTILE, cause=HOSTILE)
    page = Page(html.render(replace(ANALYSIS, lookups=[hostile, hostile], fleet=ANALYSIS.fleet)))
    check(page)
    assert any(HOSTILE in text for text in page.text)


def test_its_own_style_and_script_name_no_address() -> None:
    page = html.render(ANALYSIS).replace(LIBRARY, "")
    assert not re.findall(r"https?://(?!r0:8000)", page)
    assert "default-src 'none'" in page


def test_of_very_many_lookups_those_that_lost_most_are_listed() -> None:
    many = [replace(REPEAT, request_id=f"r{index}", time=index) for index in range(MAX_ROWS)]
    worst = replace(REPEAT, request_id="worst", lost={model.EVICTED: 11910}, time=10**9)
    text = html.render(replace(ANALYSIS, lookups=[*many, worst], findings=[]))
    assert ">worst</a>" in text
    assert "1 lookup that lost less" in text
    assert sum(f">r{index}</" in text for index in range(MAX_ROWS)) == MAX_ROWS - 1


@st.composite
def explained(draw: st.DrawFn) -> LookupResult:
    """Draw a lookup whose ladder is the one of its losses: steps from the prompt down to what the lookup hit."""
    ladder: list[tuple[str, int, int]] = []
    lost: dict[str, int] = {}
    steps = draw(st.lists(st.tuples(st.sampled_from(model.CLASSES[:12]), st.integers(1, 5000)), max_size=6))
    discarded, external = draw(st.integers(0, 300)), draw(st.integers(0, 300))
    hit = draw(st.integers(0, 9000))
    at = hit + discarded
    for cls, tokens in steps:
        ladder.insert(0, (cls, at + tokens, at))
        at += tokens
    external = min(external, at - hit - discarded)
    for cls, upper, lower in ladder:
        brought = max(0, min(upper, hit + discarded + external) - max(lower, hit + discarded))
        lost[cls] = lost.get(cls, 0) + upper - lower - brought
    lost |= {model.DISCARDED: discarded, model.EXTERNAL: external}
    lost = {cls: tokens for cls, tokens in lost.items() if tokens}
    known = draw(st.booleans())
    return replace(REPEAT, prompt_tokens=at, hit_tokens=hit, lost=lost, ladder=ladder if known else [])


@given(explained())
def test_a_bar_is_the_whole_prompt(lookup: LookupResult) -> None:
    """Its segments follow one another from 0 to the end, and have as many tokens of each class as were lost to it."""
    bar = segments(lookup)
    ends = [0, *(segment.upper for segment in bar)]
    assert [segment.lower for segment in bar] == ends[:-1]
    assert ends[-1] == lookup.prompt_tokens
    sums: dict[str, int] = {}
    for segment in bar:
        sums[segment.cls] = sums.get(segment.cls, 0) + segment.upper - segment.lower
    assert sums == {cls: tokens for cls, tokens in {HIT: lookup.hit_tokens, **lookup.lost}.items() if tokens}


def test_every_class_has_a_colour_of_its_own() -> None:
    assert set(COLORS) == {HIT, *model.CLASSES}
    assert len(set(COLORS.values())) == len(COLORS)
