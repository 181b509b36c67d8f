"""What `diff` and `check` read: captures, and reports that `otel-cache analyze --format json` wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from analyzers.cli.files import write_whole
from analyzers.cli.says import say_notes

FIRST_BYTES = 4096


def read_report(path: str) -> dict[str, Any]:
    """Return the JSON report that `path` holds, or that of the capture which it is: `read_reports` of one."""
    return read_reports([path])


def read_reports(paths: Sequence[str]) -> dict[str, Any]:
    """Return the report of the capture that `paths` are together, or the one report that is named.

    Raises:
        UsageError: it is a report of another kind or schema, or one among captures.
        CaptureError: it is a capture that cannot be read.

    """
    from analyzers.analysis import analyze
    from analyzers.cli.analyze import read_capture
    from analyzers.reporters.json import to_object
    from otel_cache.errors import UsageError

    reports = [path for path in paths if _is_report(path)]
    if reports and len(paths) > 1:
        raise UsageError(f"{reports[0]} is a report; give it alone, or captures alone")
    if reports:
        report = read_json(reports[0])
        _check(report, reports[0])
        return report
    capture = read_capture(paths)
    say_notes(capture.notes)
    return to_object(analyze(capture))


def read_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UsageError: it cannot be read, or holds none.

    """
    from otel_cache.errors import UsageError

    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: holds no JSON object")
    return data


def write_report(text: str, output: str | None) -> None:
    """Write a report to stdout, or to the file `output`, whole or not at all.

    Raises:
        UsageError: the file cannot be written.

    """
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)


def _is_report(path: str) -> bool:
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return b'"schema_version"' in opened.read(FIRST_BYTES)


def _check(report: Mapping[str, Any], path: str) -> None:
    from analyzers.reporters.json import SCHEMA_VERSION
    from otel_cache.errors import UsageError

    version, lookups = report.get("schema_version"), report.get("lookups")
    kinds = {"replicas": list, "tokens": dict, "capacity": list, "findings": list, "sequences": list, "coverage": dict}
    if version != SCHEMA_VERSION or any(not isinstance(report.get(key), kind) for key, kind in kinds.items()):
        raise UsageError(
            f"{path}: no report of otel-cache analyze in schema {SCHEMA_VERSION}; make it with --format json"
        )
    if not isinstance(lookups, list) or len(lookups) < report["coverage"].get("lookups", 0):
        raise UsageError(f"{path}: the report does not list every lookup; make it with --lookups all")
