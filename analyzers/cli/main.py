"""The command group `otel-cache`, and the one place where errors become exit codes.

0: done. 1: a finding that --fail-on names. 2: wrong usage or input (a sentence on stderr). 130: interrupted. 141:
nobody reads the output. 128 + n: ended by signal n. Anything else comes from a command that `otel-cache run` ran.
"""

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import click

from analyzers.cli import streams
from analyzers.cli.group import SuggestingGroup
from analyzers.cli.lacking import what_is_lacking
from analyzers.cli.says import printable, quiet_option
from otel_cache.errors import OtelCacheError
from otel_cache.package import VERSION

VERBS = {
    "analyze": "Say why prompt tokens were not served from the prefix cache.",
    "check": "Judge a capture by a policy: may a change go on?",
    "convert": "Write captures to one Parquet file that is read fast.",
    "diff": "Say which losses went, came and moved between two captures.",
    "explain": "Tell one request's whole story on a time line.",
    "doctor": "Say whether vLLM would be traced here, and whether its traces arrive.",
    "fetch": "Fetch the spans that Jaeger or Tempo holds, to analyze them.",
    "lab": "Run vLLM's own scheduler on a CPU, from a scenario.",
    "probe": "Ask a live server what its prefix cache reuses, and why it misses.",
    "run": "Run vLLM with the prefix cache traced.",
    "sidecar": "Run the process that builds spans and exports them.",
    "worksheet": "Compute on which boundary a prompt's repeats can hit.",
}
READ_CAPTURES = frozenset({"analyze", "check", "convert", "diff", "explain"})
INTERRUPTED = 130
NOBODY_READS = 141
KILLED = 128


class _NobodyReads(Exception):
    """The reader of stdout has gone."""


class _Verbs(SuggestingGroup):
    """A group whose commands are `analyzers.cli.<verb>.command`, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in READ_CAPTURES:
            from analyzers.memory import give_back_early

            give_back_early()
        command = importlib.import_module(f"analyzers.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Past this point click would end the process with 1, which is for findings.
            raise _NobodyReads from error

    def short_helps(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return them without importing the commands."""
        return list(VERBS.items())


def _one_spelling(token: str) -> str:
    """Let `--out` and `--output` be one option, whichever of them a command has."""
    return "output" if token == "out" else token


@click.command(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _one_spelling}
)
@click.version_option(VERSION, prog_name="otel-cache")
@quiet_option
def commands() -> None:
    """Say why an LLM server's prefix cache missed.

    \b
    Example:
      otel-cache run --out spans.jsonl -- vllm serve MODEL
      otel-cache analyze spans.jsonl
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, `sys.argv` by default, and exit."""
    streams.prepare()
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    if sys.stdout is None:
        click.echo("Error: standard output is closed; give it a file or /dev/null", err=True)
        return OtelCacheError.exit_code
    try:
        with _unwound():
            code: Any = commands.main(arguments, prog_name="otel-cache", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            error.show()
        # click lists choices in lines of their own.
        click.echo(printable(said.getvalue().replace("\n\t", " ")), nl=False, err=True)
        return error.exit_code
    except OtelCacheError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (_NobodyReads, BrokenPipeError):
        _discard_output()
        return NOBODY_READS
    except ModuleNotFoundError as error:
        click.echo(what_is_lacking(error), err=True)
        return OtelCacheError.exit_code
    except OSError as error:
        # A name too long, a full disk behind stdout: whatever the system refuses is no traceback.
        where = f"{printable(str(error.filename))}: " if error.filename else ""
        _discard_output()
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        return OtelCacheError.exit_code


@contextlib.contextmanager
def _unwound() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as an exception does, so that no half file is left; `nohup` is heeded."""

    def leave(number: int, frame: object) -> None:
        sys.exit(KILLED + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        taken = (number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL)
        before = {number: signal.signal(number, leave) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output() -> None:
    """Point stdout nowhere: what is left in its buffer has no reader, and the interpreter flushes it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
