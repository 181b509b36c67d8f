"""The page of a sweep without a browser: every setting once, the choices marked, all that is named is text."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.experiments.sweep import Measured, marked
from analyzers.reporters.html import sweep
from tests.reporters.test_html import HOSTILE, Page, check

ROWS = marked(
    [
        Measured({"retention_interval": 0}, "0.28.0", (0, 9600), (19200, 19200), {0: 7, 3: 8}, {0: 1}, 28440, 1),
        Measured({"retention_interval": 1600}, "0.28.0", (9600, 9600), (19200, 19200), {0: 21, 3: 8}, {}, 18840, 1),
        Measured({"retention_interval": "dense"}, "0.28.0", (9600, 9600), (19200, 19200), {0: 22, 3: 8}, {}, 18840, 1),
        Measured({"retention_interval": 7}, refused=f"no multiple of 1,600 {HOSTILE}"),
    ]
)


def points(page: Page) -> dict[str, list[tuple[int, int]]]:
    """Return the marks of the first chart by the name of their trace: (blocks, tokens)."""
    figure = page.figures[0]
    assert isinstance(figure, dict)
    return {trace["name"]: list(zip(trace["x"], trace["y"], strict=True)) for trace in figure["data"]}


def test_reuse_against_price() -> None:
    """Blocks over all groups, tokens of first and later repeats; what another setting beats is no star."""
    page = Page(sweep.render(ROWS))
    check(page)
    assert points(page) == {
        "Pareto choice": [(15, 19200), (29, 28800)],
        "another setting does better": [(30, 28800)],
    }
    assert any(HOSTILE in text for text in page.text)
    assert sweep.render(ROWS) == sweep.render(ROWS)


NUMBERS = st.integers(0, 10**6)
PAIRS = st.tuples(NUMBERS, NUMBERS)
BLOCKS = st.dictionaries(st.integers(0, 9), NUMBERS, max_size=3)
VALUES = st.integers(0, 9) | st.sampled_from(["dense", HOSTILE])
SETTINGS = st.builds(
    Measured, st.fixed_dictionaries({"retention_interval": VALUES, "vllm": VALUES}),
    st.sampled_from(["0.28.0", "0.33.0"]),
    PAIRS, PAIRS, BLOCKS, BLOCKS, NUMBERS, NUMBERS, st.just([(HOSTILE, 5)]), st.sampled_from(["", HOSTILE]),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(SETTINGS, min_size=1, max_size=5))
def test_any_sweep_is_text_in_it(rows: list[Measured]) -> None:
    """Each setting that ran is a mark, and every one a row."""
    found = marked([replace(rows[0], refused=""), *rows])
    page = Page(sweep.render(found))
    check(page)
    drawn = [point for trace in points(page).values() for point in trace]
    assert sorted(drawn) == sorted(
        (sum(row.cached.values()), row.first[0] + row.later[0]) for row in found if not row.refused
    )
    assert page.text.count("retention_interval") == 0
    assert sum(tag == "tr" for tag, _ in page.elements) == len(found) + 1 + 2 * (len(drawn) + 1)
