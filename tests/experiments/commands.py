"""Commands, run in the tests' own process."""

import contextlib
import io
from typing import NamedTuple

from analyzers.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: object) -> Done:
    """Run `otel-cache` with these arguments."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            return Done(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main does not return")
