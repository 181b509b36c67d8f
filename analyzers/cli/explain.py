"""`otel-cache explain`: one request's story."""

from pathlib import Path

import click

from analyzers.cli.completion import FILE
from analyzers.cli.files import cache_option
from analyzers.cli.says import quiet_option, say_notes


@click.command("explain")
@click.argument("request")
@click.argument("paths", metavar="CAPTURE...", nargs=-1, type=FILE)
@cache_option
@click.option("--example", is_flag=True, help="Read the capture that comes with otel-cache.")
@quiet_option
def command(request: str, paths: tuple[str, ...], cache: bool, example: bool) -> None:
    """Tell one request's whole story on a time line: who computed its prefix, what became of it, what it hit and lost.

    REQUEST is vLLM's id of a request, or the one that its API gave. CAPTURE is what `otel-cache analyze` reads; it is
    replayed whole, since the cause of a miss lies in other requests.

    \b
    Example:
      otel-cache explain repeat-0 spans.jsonl
      otel-cache explain repeat-0 --example
    """
    from analyzers.cli.analyze import check_example, read_capture
    from analyzers.reporters import story as report
    from analyzers.story import stories

    check_example(paths, example, "CAPTURE")
    if Path(request).exists() and not any(map(Path.exists, map(Path, paths))):
        raise click.UsageError(f"{request} is a file: the request comes first, then the captures")
    capture = read_capture(paths, cache=cache)
    told = stories(capture, request)
    say_notes(capture.notes)
    click.echo(report.render(told), nl=False)
