"""The analysis as one HTML file: it opens without a network, in any browser, and is usable by keyboard."""

from analyzers.reporters.html.page import render

__all__ = ["render"]
