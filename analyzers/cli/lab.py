"""`otel-cache lab`: vLLM's own scheduler on a CPU."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzers.cli.completion import DEFAULT, DENSE, list_of, path_or, retentions, routings
from analyzers.cli.completion import scenarios as shipped
from analyzers.cli.files import output_option
from analyzers.cli.forms import report_options
from analyzers.cli.group import SuggestingGroup
from analyzers.cli.says import StatusLine, bar, is_quiet, quiet_option, say, say_notes

if TYPE_CHECKING:
    from analyzers.experiments.inputs import Work

VLLM_HELP = "Folder that holds the package vllm to run, in place of the installed one."
INSTALLED = "installed"


def _engines() -> list[str]:
    from analyzers.experiments.inputs import SAME

    return [str(SAME)]


@click.group("lab", cls=SuggestingGroup)
@quiet_option
def command() -> None:
    """Run vLLM's scheduler and KV cache on a CPU, without a model.

    \b
    Example:
        otel-cache lab run model_case --out spans.jsonl
    """


@command.command()
@click.argument(
    "scenarios", nargs=-1, required=True, metavar="SCENARIO...", type=click.Path(path_type=Path),
    shell_complete=path_or(shipped),
)  # fmt: skip
@output_option(
    "--out",
    metavar=None,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the spans: .jsonl or .parquet. Required, unless all that is run are captures.",
)
@click.option("--vllm", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=VLLM_HELP)
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=path_or(_engines),
    help="YAML file with the engine, replicas and routing to run on, in place of the scenario's own, or another "
    "scenario, whose engine and replicas are taken; `same`: those of the capture.",
)
@quiet_option
def run(scenarios: tuple[Path, ...], out: Path | None, vllm: Path | None, engine: Path | None) -> None:
    """Run scenarios under the instrumentation and write their spans.

    SCENARIO is a YAML file, or the name of one that comes with otel-cache: model_case, early_branch. With --engine it
    may be a trace in Mooncake's format (JSON lines), or a capture: its own requests are sent again, and what became of
    the losses is written to stdout.

    \b
    Examples:
        otel-cache lab run model_case --out spans.jsonl
        otel-cache lab run mine.yaml --out spans.parquet --vllm .lanes/0.28.0
        otel-cache lab run trace.jsonl --engine engine.yaml --out spans.jsonl
        otel-cache lab run spans.jsonl --engine engine.yaml --out replayed.jsonl
    """
    from analyzers.experiments.inputs import load_work
    from analyzers.vllm_lab.run import run_scenarios

    works = [load_work(path, engine) for path in scenarios]
    if out is None and any(work.capture is None for work in works):
        raise click.UsageError("Missing option '--out': the file for the spans")
    for work in works:
        say_notes(work.notes, more="")
    with _spans(out) as spans:
        with StatusLine() as line:
            ran = run_scenarios(
                [(work.name, work.scenario) for work in works],
                spans,
                vllm,
                lambda text: line.show(text, now=True),
                quiet=is_quiet(),
            )
        if out is not None and spans != out:
            spans = spans.replace(out)
        if out is not None:
            say(f"{ran.spans:,} spans written to {out}")
        captures = [work.capture for work in works if work.capture is not None]
        if len(captures) == len(works) == 1:
            _compare(works[0], spans, ran.results[0].vllm_version)


@contextmanager
def _spans(out: Path | None) -> Iterator[Path]:
    """Yield the file for the spans, beside the one that was named: it goes again unless it is put in its place.

    What is no file (a pipe, /dev/null) or cannot be made is yielded as it is.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="otel-cache-") as folder:
            yield Path(folder) / "spans.jsonl"
    elif not out.parent.is_dir() or (out.exists() and not out.is_file()) or not os.access(out.parent, os.W_OK):
        yield out
    else:
        with tempfile.TemporaryDirectory(prefix=".otel-cache-", dir=out.parent) as folder:
            yield Path(folder) / out.name


def _say_versions(work: "Work", ran: set[str]) -> None:
    """Say so where the capture is of another vLLM than `ran`."""
    if work.capture is not None and ran and not set(work.versions) <= ran:
        says = f"the capture is of vLLM {', '.join(work.versions)}, what was run here is {', '.join(sorted(ran))}"
        say(f"note: {says}; --vllm DIR runs another")


def _compare(work: "Work", spans: Path, version: str) -> None:
    """Write what became of the losses of the capture."""
    from analyzers.analysis import analyze
    from analyzers.experiments.compare import compare
    from analyzers.readers import open_capture
    from analyzers.reporters import compare as report
    from analyzers.reporters.json import to_object

    assert work.capture
    _say_versions(work, {version})
    before, after = (to_object(analyze(capture)) for capture in (work.capture, open_capture([spans])))
    click.echo(report.render(compare(before, after)), nl=False)


@command.command()
@click.argument("work", metavar="WORK", type=click.Path(path_type=Path), shell_complete=path_or(shipped))
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=path_or(_engines),
    help="As for `lab run`: to run a trace or a capture on.",
)
@click.option(
    "--retention-interval", metavar="LIST", shell_complete=list_of(retentions),
    help="Tokens, 0, dense or default, separated by commas.",
)  # fmt: skip
@click.option("--max-num-batched-tokens", metavar="LIST", help="Batch-token limits.")
@click.option("--match-unit", metavar="LIST", help="Match units, in tokens.")
@click.option("--num-gpu-blocks", metavar="LIST", help="Sizes of the block pool.")
@click.option("--replicas", metavar="LIST", help="Numbers of replicas.")
@click.option(
    "--routing", metavar="LIST", shell_complete=list_of(routings),
    help="round_robin, random, sticky_prefix, sticky_conversation.",
)  # fmt: skip
@click.option(
    "--vllm", multiple=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    shell_complete=path_or(lambda: [INSTALLED]),
    help=f"{VLLM_HELP} Several are compared; `installed` is the installed one.",
)  # fmt: skip
@click.option("--processes", type=click.IntRange(1), help="How many run at once.  [one per CPU]")
@report_options(
    "text", "json", "markdown", "html", what="table",
    help="A table to read, one JSON object, or a page with plots that needs no network.",
)  # fmt: skip
@quiet_option
def sweep(
    work: Path,
    engine: Path | None,
    vllm: tuple[Path, ...],
    processes: int | None,
    form: str,
    output: str | None,
    **lists: str | None,
) -> None:
    """Run the same requests under many settings, and compare what they give.

    WORK is a scenario, a trace in Mooncake's format, or a capture. What is given several values is varied, each with
    each; a single value is set. Where nothing is varied the retention interval is: 0, dense, and the multiples of the
    scheduler block that matter for the boundaries of the work's repeats.

    \b
    Examples:
        otel-cache lab sweep model_case --vllm .lanes/0.28.0
        otel-cache lab sweep model_case --output sweep.html
        otel-cache lab sweep spans.jsonl --engine same --retention-interval 0,1600,3200 --num-gpu-blocks 100,400
        otel-cache lab sweep model_case --vllm .lanes/0.28.0 --vllm installed --vllm .lanes/0.33.0
    """
    from analyzers.cli.reports import write_report
    from analyzers.experiments.inputs import load_work
    from analyzers.experiments.sweep import Axes, settings_of
    from analyzers.experiments.sweep import sweep as run_sweep
    from analyzers.reporters import sweep as report

    if output is not None and not Path(output).absolute().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no folder {Path(output).absolute().parent}")
    loaded = load_work(work, engine)
    say_notes(loaded.notes, more="")
    folders = [None if folder == Path(INSTALLED) else folder for folder in vllm]
    axes = Axes(vllm=folders, **{name: _values(name, text) for name, text in lists.items() if text is not None})  # type: ignore[arg-type]
    settings = settings_of(loaded.scenario, axes, loaded.name)
    with bar(len(settings), "lab") as shown:
        rows = run_sweep(settings, processes or os.cpu_count() or 1, lambda setting: shown.update(1))
    _say_versions(loaded, {row.version for row in rows if row.version})
    if form == "html":
        from analyzers.reporters.html import sweep as page

        write_report(page.render(rows), output)
        return
    renders = {"text": report.render, "json": report.render_json, "markdown": report.render_markdown}
    write_report(renders[form](rows), output)


def _values(name: str, text: str) -> list[int | str]:
    """Return the values of an axis.

    Raises:
        UsageError: one of them is none of this axis.

    """
    from typing import get_args

    from analyzers.vllm_lab.routing import Routing

    words = {"retention_interval": (DENSE, DEFAULT), "routing": get_args(Routing)}.get(name, ())
    found: list[int | str] = []
    for value in filter(None, (part.strip() for part in text.split(","))):
        number = value.isdecimal() and name != "routing"
        if not number and value not in words:
            known = ["a number"] * (name != "routing") + list(words)
            raise click.UsageError(f"--{name.replace('_', '-')} {value}: not {' or '.join(known)}")
        if number and not int(value) and name != "retention_interval":
            raise click.UsageError(f"--{name.replace('_', '-')} {value}: has to be at least 1")
        found.append(int(value) if number else value)
    if not found:
        raise click.UsageError(f"--{name.replace('_', '-')} {text!r}: names no value")
    return list(dict.fromkeys(found))
