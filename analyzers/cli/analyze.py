"""`otel-cache analyze`: a capture in, a report out."""

import os
import sys
from pathlib import Path
from typing import Any, Literal

import click

MAX_NOTES = 5
EXAMPLE = "model_case.jsonl"


@click.command("analyze")
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="A report to read, or one JSON object (docs/analyze.md has its schema).",
)  # fmt: skip
@click.option(
    "--lookups", type=click.Choice(["all", "losing", "none"]),
    help="Which lookups to list; losing: those that lost more than is by design. "
    "Without this option, text lists the losing ones and JSON all.",
)  # fmt: skip
@click.option("--output", metavar="FILE", help="Write the report there instead of to stdout.")
@click.option("--example", is_flag=True, help="Analyze the capture that comes with otel-cache.")
def command(
    paths: tuple[str, ...],
    form: Literal["text", "json"],
    lookups: Literal["all", "losing", "none"] | None,
    output: str | None,
    example: bool,
) -> None:
    """Say of every prompt token in a capture whether it came from the prefix cache and, if not, why.

    PATH is a file of OTLP JSON lines or the sidecar's Parquet, a folder of such files, a pattern in quotes, or - for
    stdin. Several are read as one capture.

    \b
    Example:
      otel-cache analyze spans.jsonl
      otel-cache analyze 'captures/*.parquet' --format json --output report.json
      otel-cache analyze --example
    """
    if bool(paths) == example:
        raise click.UsageError("give the PATH of a capture, or --example (one of them)")
    if "" in paths:
        raise click.UsageError("an empty PATH: is a variable unset? Use . for the current folder")
    if output is not None:
        _refuse_to_overwrite(output, paths)
    report, notes = _report(paths, form, lookups, color=output is None and _colorful())
    from analyzers.cli.main import printable

    for note in notes[:MAX_NOTES]:
        click.echo(f"note: {printable(note)}", err=True)
    if len(notes) > MAX_NOTES:
        click.echo(f"note: {len(notes) - MAX_NOTES} more notes; --format json has them all", err=True)
    _write(report, output)


def _report(paths: tuple[str, ...], form: str, lookups: Any, color: bool) -> tuple[str, list[str]]:
    from analyzers.analysis import analyze
    from analyzers.readers import open_capture
    from analyzers.reporters import json, text

    if paths:
        capture = open_capture(paths)
    else:
        from importlib.resources import as_file, files

        with as_file(files("analyzers") / "examples" / EXAMPLE) as path:
            capture = open_capture([path])
    analysis = analyze(capture)
    if form == "json":
        return json.render(analysis, lookups or "all"), list(capture.notes)
    return text.render(analysis, lookups or "losing", color=color), list(capture.notes)


def _colorful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _refuse_to_overwrite(output: str, paths: tuple[str, ...]) -> None:
    from analyzers.readers import is_source

    if is_source(output, paths):
        raise click.UsageError(f"--output {output} is one of the captures; give another file")


def _write(report: str, output: str | None) -> None:
    if output is None:
        click.echo(report, nl=False, color=True)
        return
    from otel_cache.errors import UsageError

    try:
        Path(output).write_text(report, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror})") from error
