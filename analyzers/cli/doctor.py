"""`otel-cache doctor`: what is wrong between a vLLM and the back end."""

import json
import sys
from pathlib import Path

import click

from analyzers.cli.says import printable, quiet_option


@click.command("doctor")
@click.option(
    "--vllm",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder that holds the package vllm to look at, in place of the installed one.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="text, or JSON.")
@quiet_option
def command(vllm: Path | None, form: str) -> None:
    """Say whether vLLM would be traced here, and whether its traces arrive.

    Run it as vLLM is run: in the same Python, with the same environment variables. It imports vLLM in a process of
    its own, asks a running sidecar, and sends an empty request to the collector: the one that the environment names,
    or that the running sidecar exports to. Where neither does, it is a warning that none answers at OTLP's default
    endpoint. One line per check: ok, warning or problem, and what to do; the last one says whether a vLLM that is
    started here would be traced, and recorded. Exit code 1 where there is a problem.

    \b
    Example:
        otel-cache doctor
        otel-cache doctor --vllm .lanes/0.33.0 --format json
    """
    from analyzers.doctor.checks import PROBLEM, WARNING, verdict
    from analyzers.doctor.examine import examine

    checks = list(examine(vllm))
    problems, warnings = (sum(check.level == level for check in checks) for level in (PROBLEM, WARNING))
    if form == "json":
        found = {
            "traced": not any(check.untraced or check.unrecorded for check in checks),
            "problems": problems,
            "warnings": warnings,
            "checks": [vars(check) for check in checks],
        }
        click.echo(json.dumps(found, indent=2))
    else:
        for check in checks:
            todo = f" -> {check.todo}" if check.todo else ""
            click.echo(printable(f"{check.level:<8} {check.name}: {check.says}{todo}"))
        click.echo(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}: {verdict(checks)}")
    if problems:
        sys.exit(1)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
