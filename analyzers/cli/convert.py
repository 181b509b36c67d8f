"""`otel-cache convert`: captures to one Parquet file."""

import click

from analyzers.cli.completion import FILE
from analyzers.cli.files import output_option
from analyzers.cli.says import StatusLine, quiet_option, say, say_notes


@click.command("convert")
@click.argument("paths", metavar="CAPTURE...", nargs=-1, required=True, type=FILE)
@output_option("--output", required=True, help="The Parquet file to write; it is replaced.")
@quiet_option
def command(paths: tuple[str, ...], output: str) -> None:
    """Write captures to one Parquet file with typed columns, which all commands read far faster than what it came from.

    CAPTURE is what `otel-cache analyze` reads, of any size: the memory does not grow with it. docs/captures.md has the
    columns.

    \b
    Example:
      otel-cache convert spans.jsonl --output spans.parquet
      otel-cache convert captures/ --output day.parquet
    """
    from analyzers.cli.analyze import reading
    from analyzers.readers import convert

    with StatusLine() as line:
        spans, notes = convert(paths, output, reading(line))
    say_notes(notes, more="")
    say(f"{spans:,} spans written to {output}")
