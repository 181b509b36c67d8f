"""Explains, from exported spans, why prompt tokens were not served from vLLM's prefix cache.

As a library (docs/library.md has every column and unit):

    from analyzers import analyze, lookup_frame, open_capture

    capture = open_capture("spans.jsonl")
    analysis = analyze(capture)
    lookups = lookup_frame(analysis.lookups)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzers.analysis import analyze
    from analyzers.choice import Choice
    from analyzers.model import Analysis, Capture
    from analyzers.readers import convert, open_capture
    from analyzers.reporters.lookup_frame import lookup_frame

__all__ = ["Analysis", "Capture", "Choice", "analyze", "convert", "lookup_frame", "open_capture"]

_HOMES = {
    "Analysis": "analyzers.model",
    "Capture": "analyzers.model",
    "Choice": "analyzers.choice",
    "analyze": "analyzers.analysis",
    "convert": "analyzers.readers",
    "lookup_frame": "analyzers.reporters.lookup_frame",
    "open_capture": "analyzers.readers",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: the command line, whose modules lie here too, starts without polars."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
