"""`otel-cache check`: may a change go on?"""

from pathlib import Path

import click

from analyzers.cli.completion import FILE
from analyzers.cli.forms import report_options
from analyzers.cli.says import quiet_option


@click.command("check")
@click.argument("paths", metavar="CAPTURE...", nargs=-1, required=True, type=FILE)
@click.option("--policy", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The rules, in YAML.")
@click.option("--probe", metavar="FILE", type=FILE, help="JSON of `otel-cache probe`, for the rule on outputs.")
@report_options("text", "json", "markdown", what="verdict")
@quiet_option
def command(paths: tuple[str, ...], policy: Path, probe: str | None, form: str, output: str | None) -> None:
    """Judge a capture by a policy: the stop rule of a change as a file.

    CAPTURE is what `otel-cache analyze` reads, or one JSON report of it. Exit code 0: every rule holds; 1: one does
    not; 2: one cannot be told, or the input is wrong.

    \b
    Example:
      otel-cache check --policy policy.yaml spans.jsonl
      otel-cache check --policy policy.yaml spans.jsonl --probe probe.json --output verdict.md
    """
    from analyzers.cli.reports import read_json, read_reports, write_report
    from analyzers.experiments.gate import EXIT_CODES, judge
    from analyzers.experiments.policy import load_policy
    from analyzers.reporters import gate as report

    rules = load_policy(policy)
    verdict = judge(read_reports(paths), rules, read_json(probe) if probe else None)
    renders = {"text": report.render, "json": report.render_json, "markdown": report.render_markdown}
    write_report(renders[form](verdict), output)
    click.get_current_context().exit(EXIT_CODES[verdict.outcome])
