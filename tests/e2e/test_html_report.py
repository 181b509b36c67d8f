"""The HTML report in a real browser: rendered, clicked, driven by keyboard, without an error and without a network."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from analyzers.analysis import analyze
from analyzers.cli.analyze import read_capture
from analyzers.model import Analysis
from analyzers.reporters import html
from scripts.browser import ensure_browser
from tests.experiments.commands import command
from tests.reporters.example import ANALYSIS

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,1600",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = ensure_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def visit(browser: webdriver.Chrome, analysis: Analysis, folder: Path) -> None:
    path = folder / "report.html"
    path.write_text(html.render(analysis), encoding="utf-8")
    browser.get(path.as_uri())
    charts = len(browser.find_elements(By.CLASS_NAME, "chart"))
    WebDriverWait(browser, 120).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".chart .main-svg")) >= charts)


def quiet(browser: webdriver.Chrome) -> None:
    """Nothing was said on the console, and no address was asked for but the page's own."""
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    asked = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert not [message for message in asked if '"url":"http' in message]


def column(browser: webdriver.Chrome, number: int) -> list[str]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#lookups-table tbody tr")
    return [row.find_elements(By.CSS_SELECTOR, "td, th")[number].text for row in rows if row.is_displayed()]


def drawn(element: WebElement) -> bool:
    return element.size["height"] > 100 and bool(element.find_elements(By.CSS_SELECTOR, "path, rect"))


def test_every_chart_of_a_capture_is_drawn(browser: webdriver.Chrome, tmp_path: Path) -> None:
    visit(browser, analyze(read_capture([])), tmp_path)
    charts = browser.find_elements(By.CLASS_NAME, "chart")
    assert [chart.get_attribute("id") for chart in charts] == ["chart-funnel", "chart-time", "chart-occupancy-0"]
    assert all(drawn(chart) for chart in charts)
    bars = browser.find_elements(By.CSS_SELECTOR, "table.family .bar")
    assert len(bars) == 4
    # The first repeat's bar: 9,600 tokens of 11,910 were refused by the mask.
    shifted = bars[1].find_element(By.CLASS_NAME, "c-shifted_boundary")
    assert shifted.size["width"] / bars[1].size["width"] == pytest.approx(9600 / 11910, abs=0.01)
    quiet(browser)


def test_a_finding_leads_to_its_lookup(browser: webdriver.Chrome, tmp_path: Path) -> None:
    visit(browser, ANALYSIS, tmp_path)
    assert {chart.get_attribute("id") for chart in browser.find_elements(By.CLASS_NAME, "chart")} == {
        "chart-funnel", "chart-time", "chart-regret", "chart-occupancy-0", "chart-evictions-0",
    }  # fmt: skip
    browser.find_element(By.CSS_SELECTOR, "#findings .finding a").send_keys(Keys.ENTER)
    target = browser.find_element(By.CSS_SELECTOR, ":target")
    assert target.find_element(By.TAG_NAME, "h3").text == "repeat-0"
    assert browser.execute_script("return arguments[0].getBoundingClientRect().top < innerHeight", target)
    quiet(browser)


def test_lookups_are_sorted_and_searched(browser: webdriver.Chrome, tmp_path: Path) -> None:
    visit(browser, analyze(read_capture([])), tmp_path)
    assert column(browser, 1) == ["cold", "repeat-0", "repeat-1", "repeat-2"]
    lost = browser.find_element(By.CSS_SELECTOR, "#lookups-table th:nth-child(6) button")
    lost.click()
    lost.send_keys(Keys.SPACE)
    assert column(browser, 1)[0] == "repeat-0"
    assert column(browser, 5) == ["9,600", "0", "0", "0"]
    head = browser.find_element(By.CSS_SELECTOR, "#lookups-table th:nth-child(6)")
    assert head.get_attribute("aria-sort") == "descending"
    search = browser.find_element(By.ID, "lookups-search")
    search.send_keys("REPEAT 9,600 shifted")
    assert column(browser, 1) == ["repeat-0"]
    assert browser.find_element(By.ID, "lookups-count").text == "1 of 4"
    search.clear()
    search.send_keys("nothing like it")
    assert column(browser, 1) == []
    quiet(browser)


def test_light_and_dark(browser: webdriver.Chrome, tmp_path: Path) -> None:
    visit(browser, ANALYSIS, tmp_path)

    def background() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def label() -> str:
        text = browser.find_element(By.CSS_SELECTOR, "#chart-time .xtitle")
        return str(browser.execute_script("return getComputedStyle(arguments[0]).fill", text))

    before = background(), label()
    button = browser.find_element(By.ID, "theme")
    button.click()
    after = background(), label()
    assert all(one != other for one, other in zip(before, after, strict=True))
    button.send_keys(Keys.ENTER)
    assert (background(), label()) == before
    quiet(browser)


def test_it_is_walked_through_by_keyboard(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """The tabulator reaches every link, button, field and summary."""
    visit(browser, ANALYSIS, tmp_path)
    reached = set()
    for _ in range(400):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        element = browser.switch_to.active_element
        if element.tag_name == "body":
            break
        reached.add(element.id)
    wanted = browser.find_elements(By.CSS_SELECTOR, "nav a, nav button, main a, thead button, input, summary")
    missed = [each for each in wanted if each.is_displayed() and each.id not in reached]
    assert [each.get_attribute("outerHTML") for each in missed] == []


def test_a_sweep_is_drawn(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """Reuse against price, as vLLM's own scheduler measured it: a mark for each setting, a star for each choice."""
    page, lane = tmp_path / "sweep.html", Path(__file__).parents[2] / ".lanes" / "0.28.0"
    arguments = ("lab", "sweep", "model_case", "--retention-interval", "0,1600,dense", "--vllm", lane, "--processes", 1)
    assert command(*arguments, "--format", "html", "--output", page).returncode == 0
    browser.get(page.as_uri())
    WebDriverWait(browser, 120).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".chart .main-svg")) >= 2)
    rows = browser.find_elements(By.CSS_SELECTOR, "#settings-table tbody tr")
    assert [row.find_element(By.TAG_NAME, "td").text for row in rows] == ["0", "1,600", "dense"]
    stars = sum(row.find_elements(By.TAG_NAME, "td")[8].text == "*" for row in rows)
    traces = browser.find_elements(By.CSS_SELECTOR, "#chart-price .trace.scatter")
    assert [len(trace.find_elements(By.CSS_SELECTOR, ".points path")) for trace in traces] == [
        each for each in (stars, 3 - stars) if each
    ]
    assert all(drawn(each) for each in browser.find_elements(By.CLASS_NAME, "chart"))
    prefill = browser.find_element(By.CSS_SELECTOR, "#settings-table th:nth-child(5) button")
    prefill.click()
    assert browser.find_element(By.CSS_SELECTOR, "#settings-table tbody td").text != "0"
    browser.find_element(By.ID, "settings-search").send_keys("dense")
    assert browser.find_element(By.ID, "settings-count").text == "1 of 3"
    quiet(browser)


def test_markup_in_names_is_text(browser: webdriver.Chrome, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=\"document.title='run'\"><b>"
    lookups = [replace(each, request_id=hostile, family=hostile, replica=hostile) for each in ANALYSIS.lookups]
    visit(browser, replace(ANALYSIS, lookups=lookups), tmp_path)
    assert browser.title.startswith("otel-cache")
    assert browser.find_elements(By.CSS_SELECTOR, "img, b") == []
    assert hostile in browser.find_element(By.CSS_SELECTOR, "#lookups-table").text
    quiet(browser)
