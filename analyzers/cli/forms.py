"""The form of a report: what `--format` says, else what the name of the file asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from analyzers.cli.files import output_option

Command = TypeVar("Command", bound=Callable[..., Any])
TEXT = "text"
_OF_SUFFIX = {
    ".json": "json", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".parquet": "parquet",
}  # fmt: skip


def report_options(*forms: str, what: str, help: str = "") -> Callable[[Command], Command]:
    """Return what gives a command `--format`, one of `forms`, as `form`, and `--output`, a file for `what`.

    Where `--format` is not given the form is that of the file's name, or text.
    """

    def choose(context: click.Context, option: click.Parameter, form: str | None) -> str:
        # What is given is taken before what is not: the name of the file is known.
        output = context.params.get("output")
        asked = _OF_SUFFIX.get(Path(output).suffix.lower(), TEXT) if output else TEXT
        if form is None and asked not in forms:
            raise click.UsageError(
                f"--output {output}: {context.command.name} writes no {asked}; give --format ({', '.join(forms)})"
            )
        return form or asked

    def add(command: Command) -> Command:
        written = output_option("--output", help=f"Write the {what} there instead of to stdout.")
        said = f"{help}  [as FILE's name ends, else text]".strip()
        chosen = click.option("--format", "form", type=click.Choice(forms), callback=choose, help=said)
        return chosen(written(command))

    return add
