"""`otel-cache diff`: two captures or reports, before and after a change."""

import click

from analyzers.cli.completion import FILE
from analyzers.cli.forms import report_options
from analyzers.cli.says import quiet_option


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@report_options("text", "json", "markdown", what="comparison")
@click.option("--requests", type=click.IntRange(0), default=10, show_default=True, help="Requests that are listed.")
@quiet_option
def command(before: str, after: str, form: str, requests: int, output: str | None) -> None:
    """Say which losses went, which came, and which moved from one class to another.

    BEFORE and AFTER are captures, or JSON reports of `otel-cache analyze`. Requests meet by their ids: those of a
    replay (`otel-cache lab run CAPTURE`) have the capture's.

    \b
    Example:
      otel-cache diff before.jsonl after.jsonl
      otel-cache diff before.json after.jsonl --format markdown
    """
    from analyzers.cli.reports import read_report, write_report
    from analyzers.experiments.compare import compare
    from analyzers.reporters import compare as report

    found = compare(read_report(before), read_report(after), requests)
    renders = {"text": report.render, "json": report.render_json, "markdown": report.render_markdown}
    write_report(renders[form](found), output)
