"""`otel-cache lab`: vLLM's own scheduler on a CPU."""

import sys
from pathlib import Path

import click


@click.group("lab")
def command() -> None:
    """Run vLLM's scheduler and KV cache on a CPU, without a model.

    \b
    Example:
        otel-cache lab run model_case --out spans.jsonl
    """


@command.command()
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the spans: .jsonl or .parquet.",
)
@click.option(
    "--vllm",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder that holds the package vllm to run, in place of the installed one.",
)
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file with the engine, replicas and routing to run on, in place of the scenario's own.",
)
def run(scenarios: tuple[Path, ...], out: Path, vllm: Path | None, engine: Path | None) -> None:
    """Run scenarios under the instrumentation and write their spans.

    SCENARIO is a YAML file, or the name of one that comes with otel-cache: model_case, early_branch. With --engine it
    may be a trace in Mooncake's format (JSON lines) as well.

    \b
    Examples:
        otel-cache lab run model_case --out spans.jsonl
        otel-cache lab run mine.yaml --out spans.parquet --vllm .lanes/0.28.0
        otel-cache lab run trace.jsonl --engine engine.yaml --out spans.jsonl
    """
    from analyzers.vllm_lab.run import run_scenarios
    from analyzers.vllm_lab.scenario import find_scenario

    def note(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"lab: {text}", err=True)

    run_scenarios([find_scenario(path) for path in scenarios], out, vllm, note, engine)
