"""`otel-cache run`: run vLLM with the instrumentation on and a sidecar beside it."""

import click

from analyzers.cli.completion import FILE
from analyzers.cli.says import is_quiet, quiet_option


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--out", metavar="FILE", type=FILE, help="Write every span there: Parquet if it ends in .parquet, else OTLP JSON."
)
@click.option("--endpoint", metavar="URL", help="Export by OTLP to this endpoint.")
@click.option("--append", is_flag=True, help="Go on after what FILE holds instead of replacing it.")
@quiet_option
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(out: str | None, endpoint: str | None, append: bool, words: tuple[str, ...]) -> None:
    """Run COMMAND with the prefix cache traced, and end with its exit code.

    Signals are passed on to the command. Without --out and without an endpoint, here or in
    OTEL_EXPORTER_OTLP_ENDPOINT, spans are exported to localhost:4317.

    \b
    Example:
      otel-cache run --out capture.jsonl -- vllm serve Qwen/Qwen3-0.6B --port 8000
    """
    import sys

    from analyzers.cli.supervise import run_traced

    if "" in (out, endpoint):
        raise click.UsageError("--out or --endpoint is empty: is a variable unset?")
    sys.exit(run_traced(list(words), out, endpoint, append=append, quiet=is_quiet()))
