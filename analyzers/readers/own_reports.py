"""Reports of otel-cache itself, told by how they begin: they lie beside captures, and are none."""

import re
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from analyzers.readers.object_storage import BROKEN

HEAD_BYTES = 256
"""So much of a file tells."""
_BEGINNINGS = {
    "analyze": rb'"schema_version":\d+,"coverage":',
    "probe": rb'"schema_version":\d+,"probe":',
    "check": rb'"outcome":"\w+","rules":',
    "diff": rb'"prompt_tokens":[\[{]',
    "doctor": rb'"traced":\w+,"problems":\d+,"warnings":',
    "lab sweep": rb'"settings":\[',
    "worksheet": rb'"prompt_tokens":\d+,"final_aligned_boundary":',
}
"""How the JSON of each command begins, without the spaces."""
_REPORT = re.compile(b"|".join(rb"(\{%b)" % begin for begin in _BEGINNINGS.values()))
_OF_CAPTURES = ("analyze", "check", "diff", "lab sweep")
_SPACE = b" \t\r\n"
_LOOKUPS = {"request_id", "prompt_tokens", "hit_tokens", "predicted_hit_tokens"}
"""Columns of the table of lookups that `analyze` writes, and of no capture."""


def report_of(head: bytes) -> str:
    """Return the command whose JSON report begins with `head`, "" where it is none."""
    found = _REPORT.match(head[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").translate(None, _SPACE))
    return list(_BEGINNINGS)[(found.lastindex or 1) - 1] if found else ""


def is_table(columns: Iterable[str]) -> bool:
    """Whether Parquet of these columns is the table of lookups that `analyze` writes."""
    return set(columns) >= _LOOKUPS


def is_table_file(path: Path) -> bool:
    """Whether a file of Parquet is such a table; one that cannot be read is none."""
    try:
        return is_table(pl.read_parquet_schema(path))
    except BROKEN:
        return False


def no_capture(label: str, command: str) -> str:
    """Say that an input is a report of `command`, and what to give instead."""
    made = "that it was made of" if command in _OF_CAPTURES else "that the sidecar or a collector wrote"
    others = "; only `otel-cache diff` and `otel-cache check` read reports" if command == "analyze" else ""
    return f"{label}: a report of `otel-cache {command}`, not a capture; give the capture {made}{others}"


def no_capture_but_table(label: str) -> str:
    """Say that Parquet is the table of lookups of a report, and what to give instead."""
    return f"{label}: the lookups that `otel-cache analyze` reported, not a capture; give the capture that they are of"
