"""`otel-cache convert`: captures to one Parquet file."""

import click


@click.command("convert")
@click.argument("paths", metavar="CAPTURE...", nargs=-1, required=True)
@click.option("--output", metavar="FILE", required=True, help="The Parquet file to write; it is replaced.")
def command(paths: tuple[str, ...], output: str) -> None:
    """Write captures to one Parquet file with typed columns, which all commands read far faster than what it came from.

    CAPTURE is what `otel-cache analyze` reads, of any size: the memory does not grow with it. docs/captures.md has the
    columns.

    \b
    Example:
      otel-cache convert spans.jsonl --output spans.parquet
      otel-cache convert captures/ --output day.parquet
    """
    from analyzers.cli.analyze import say_notes
    from analyzers.readers import convert

    spans, notes = convert(paths, output)
    say_notes(notes)
    click.echo(f"{spans} spans written to {output}", err=True)
