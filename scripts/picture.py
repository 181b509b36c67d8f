"""Takes the README's picture: the HTML report of the capture that ships, in a real browser."""

import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from analyzers.analysis import analyze
from analyzers.cli.analyze import read_capture
from analyzers.reporters import html
from scripts.browser import ensure_browser

TARGET = Path(__file__).parents[1] / "docs" / "report.png"
WIDTH, HEIGHT = 1100, 1500
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb")
PATIENCE = 120
"""Seconds that the charts may take."""


def take(target: Path = TARGET) -> None:
    """Write the picture as PNG to `target`."""
    chromium, driver = ensure_browser()
    with tempfile.TemporaryDirectory(prefix="otel-cache-") as folder:
        page = Path(folder, "report.html")
        page.write_text(html.render(analyze(read_capture([]))), encoding="utf-8")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (*ARGUMENTS, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}/profile"):
            options.add_argument(argument)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            browser.get(page.as_uri())
            charts = len(browser.find_elements(By.CLASS_NAME, "chart"))
            WebDriverWait(browser, PATIENCE).until(
                lambda b: len(b.find_elements(By.CSS_SELECTOR, ".chart .main-svg")) >= charts
            )
            browser.save_screenshot(str(target))
        finally:
            browser.quit()


if __name__ == "__main__":
    sys.exit(take())
