"""`otel-cache analyze`: a capture in, a report out."""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from analyzers.cli.completion import FILE, list_of, rules
from analyzers.cli.files import cache_option, write_whole
from analyzers.cli.forms import report_options
from analyzers.cli.says import StatusLine, quiet_option, say, say_notes
from otel_cache.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from analyzers.choice import Choice
    from analyzers.model import Analysis, Capture
    from analyzers.readers.tally import Progress

MAX_JSON_LOOKUPS = 100_000
FORMATS = ("text", "json", "markdown", "html", "parquet")
EXAMPLE = "model_case.jsonl"


@click.command("analyze")
@click.argument("paths", metavar="PATH...", nargs=-1, type=FILE)
@report_options(
    *FORMATS, what="report",
    help="A report to read (text, markdown, or one HTML file that needs no network), one JSON object "
    "(docs/analyze.md has its schema), or a Parquet table of the lookups.",
)  # fmt: skip
@click.option(
    "--lookups", type=click.Choice(["all", "losing", "none"]),
    help="Which lookups to list; losing: those that lost more than is by design. "
    "Without this option, text and Markdown list the losing ones, the others all.",
)  # fmt: skip
@cache_option
@click.option("--example", is_flag=True, help="Analyze the capture that comes with otel-cache.")
@click.option(
    "--fail-on", metavar="RULE[,RULE]", shell_complete=list_of(rules),
    help="Exit with 1 if there is a finding of such a rule.",
)  # fmt: skip
@click.option("--since", metavar="TIME", help="Only lookups from then on: ISO 8601, or 90s, 10m, 2h after the first.")
@click.option("--until", metavar="TIME", help="Only lookups up to then.")
@click.option("--replica", metavar="NAME", help="Only lookups on this replica.")
@click.option("--family", metavar="REQUEST", help="Only lookups of the family that this request belongs to.")
@click.option("--top", type=click.IntRange(0), default=3, show_default=True, help="Fixes that the report opens with.")
@quiet_option
def command(
    paths: tuple[str, ...],
    form: str,
    lookups: Literal["all", "losing", "none"] | None,
    output: str | None,
    cache: bool,
    example: bool,
    fail_on: str | None,
    since: str | None,
    until: str | None,
    replica: str | None,
    family: str | None,
    top: int,
) -> None:
    """Say of every prompt token in a capture whether it came from the prefix cache and, if not, why.

    PATH is a capture in any form (docs/captures.md), a folder of them, a pattern in quotes, - for stdin, or Parquet in
    object storage (s3://, gs://, az://). Several are read as one capture.

    \b
    Example:
      otel-cache analyze spans.jsonl
      otel-cache analyze 'captures/*.parquet' --output report.json
      otel-cache analyze spans.jsonl --output report.html
      otel-cache analyze spans.jsonl --fail-on shifted-boundary,evicted
      otel-cache analyze spans.jsonl --since 10m --replica replica-0
      otel-cache analyze --example
    """
    check_example(paths, example, "PATH")
    if "" in paths:
        raise click.UsageError("an empty PATH: is a variable unset? Use . for the current folder")
    if output is None and form == "parquet":
        raise click.UsageError("--format parquet needs --output FILE: it is not written to stdout")
    failing = _rules(fail_on)
    with StatusLine() as line:
        capture = read_capture(paths, line, cache=cache)
        from analyzers.analysis import analyze

        line.show(f"explaining {capture.lookups.height:,} lookups", now=True)
        choice = _choice(capture, since, until, replica, family)
        times, notes = capture.lookups["start"], capture.notes
        # Nothing here holds on to the capture, so that its memory is free for what the analysis makes of it.
        given = [capture]
        del capture
        analysis = analyze(given.pop(), choice)
        if not analysis.lookups:
            none = nothing_chosen(times, {"since": since, "until": until, "replica": replica, "family": family})
            if failing:
                raise UsageError(f"{none}. --fail-on has nothing to judge, which is no pass")
        line.show("writing the report", now=True)
        report = _render(analysis, form, lookups, output, top)
    say_notes(notes)
    if not analysis.lookups:
        say(f"note: {none}")
    _write(report, output)
    if found := failing & {finding.rule for finding in analysis.findings}:
        # The reason for an exit code is no note: it is said even with --quiet.
        click.echo(f"--fail-on: there is a finding of {', '.join(sorted(found))}", err=True)
        click.get_current_context().exit(1)


def _render(
    analysis: "Analysis", form: str, lookups: Literal["all", "losing", "none"] | None, output: str | None, top: int
) -> str | bytes:
    if form == "json":
        from analyzers.reporters import json

        return json.render(analysis, lookups or "all", _lookups_apart(analysis, lookups or "all", output))
    if form == "html":
        from analyzers.reporters import html

        return html.render(analysis, lookups or "all")
    if form == "markdown":
        from analyzers.reporters import markdown_report

        return markdown_report.render(analysis, lookups or "losing", top)
    if form == "parquet":
        return _parquet(analysis, lookups or "all")
    from analyzers.reporters import text

    return text.render(analysis, lookups or "losing", color=output is None and _colorful(), top=top)


def _lookups_apart(analysis: "Analysis", lookups: Literal["all", "losing", "none"], output: str | None) -> str | None:
    """Return the name of the Parquet file that has the lookups, None where they stand in the JSON object."""
    from analyzers.reporters.selection import select_lookups

    if len(select_lookups(analysis, lookups)) <= MAX_JSON_LOOKUPS:
        return None
    if output is None:
        say(
            f"note: more than {MAX_JSON_LOOKUPS:,} lookups are too many for one JSON object and left out of it; "
            "with --output FILE they go to a Parquet file beside it"
        )
        return ""
    path = Path(output)
    beside = path.with_name(f"{path.stem}.lookups.parquet")
    write_whole(str(beside), _parquet(analysis, lookups))
    return beside.name


def _parquet(analysis: "Analysis", lookups: Literal["all", "losing", "none"]) -> bytes:
    from io import BytesIO

    from analyzers.reporters.lookup_frame import lookup_frame
    from analyzers.reporters.selection import select_lookups

    buffer = BytesIO()
    lookup_frame(select_lookups(analysis, lookups)).write_parquet(buffer)
    return buffer.getvalue()


def read_capture(paths: Sequence[str], line: StatusLine | None = None, *, cache: bool = False) -> "Capture":
    """Return the capture that `paths` are, the example where there are none; `line` shows how far it is.

    `cache` is as in `open_capture`.
    """
    from analyzers.readers import open_capture

    if paths and line is not None:
        return open_capture(paths, reading(line), cache=cache)
    if paths:
        with StatusLine() as own:
            return open_capture(paths, reading(own), cache=cache)
    from importlib.resources import as_file, files

    with as_file(files("analyzers") / "examples" / EXAMPLE) as path:
        return open_capture([path])


def check_example(paths: Sequence[str], example: bool, what: str) -> None:
    """Check that there are captures, called `what` in the usage, or `--example`, and not both."""
    if paths and example:
        raise click.UsageError(f"{what} and --example are both given: leave one of them out")
    if not paths and not example:
        raise click.UsageError(f"give a capture ({what}), or --example")


def reading(line: StatusLine) -> "Progress":
    """Return what shows on `line` how far reading is."""

    def show(spans: int, number: int, inputs: int) -> None:
        of = f", file {number:,} of {inputs:,}" if inputs > 1 else ""
        line.show(f"reading: {spans:,} spans of otel_cache{of}")

    return show


def _rules(fail_on: str | None) -> set[str]:
    """Return the rules that `--fail-on` names."""
    if fail_on is None:
        return set()
    from analyzers.rules import RULES, no_rule

    named = {rule.strip() for rule in fail_on.split(",")}
    for rule in sorted(named - set(RULES)):
        raise click.UsageError(f"--fail-on: {no_rule(rule)}")
    return named


def _choice(
    capture: "Capture", since: str | None, until: str | None, replica: str | None, family: str | None
) -> "Choice":
    """Return the choice of lookups that the options make.

    Raises:
        UsageError: a time that is none, an end before its beginning, a replica or a request that the capture lacks.

    """
    from analyzers.choice import Choice, moment
    from analyzers.suggestions import instead_of

    begin = int(capture.lookups["start"].min() or 0)  # type: ignore[arg-type]
    replicas = sorted({life.replica for life in capture.lives})
    if replica is not None and replica not in replicas:
        raise UsageError(f"--replica {replica}: not in the capture; {instead_of(replica, replicas)}")
    if family is not None and family not in capture.lookups["request_id"]:
        hint = instead_of(family, capture.lookups["request_id"].unique(maintain_order=True).to_list())
        raise UsageError(f"--family {family}: no request of the capture has this id{'; ' if hint else ''}{hint}")
    first = None if since is None else moment(since, begin, "--since")
    last = None if until is None else moment(until, begin, "--until")
    if first is not None and last is not None and first > last:
        raise UsageError(f"--since {since} is later than --until {until}: no lookup lies between them")
    return Choice(first, last, replica, family)


def nothing_chosen(times: "pl.Series", options: Mapping[str, str | None]) -> str:
    """Say that no lookup is reported, and why: there is none, or when those are that `options` leave out.

    `times` are the starts of all lookups of the capture, ns since the epoch.
    """
    if times.is_empty():
        return "the capture has no lookup"
    first, last = (_clock(time) for time in (times.min(), times.max()))
    given = " ".join(f"--{name} {value}" for name, value in options.items() if value is not None)
    spread = (times.max() - times.min()) / 1e9  # type: ignore[operator]
    return (
        f"no lookup of the capture is chosen by {given}: it has {len(times):,}, the first at {first}, the last at "
        f"{last}, {spread:,.3f} s later"
    )


def _clock(time: object) -> str:
    """Write a time (ns since the epoch) as --since takes it."""
    assert isinstance(time, int)
    return datetime.fromtimestamp(time / 1e9, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _colorful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(report: str | bytes, output: str | None) -> None:
    if output is not None:
        write_whole(output, report)
    else:
        assert isinstance(report, str)
        click.echo(report, nl=False, color=True)
