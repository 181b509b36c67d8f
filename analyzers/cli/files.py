"""Files that a command writes: whole, or not at all, and never over what it reads; and whether it keeps that."""

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from analyzers.cli.completion import FILE
from otel_cache.errors import CaptureError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

cache_option = click.option(
    "--cache",
    is_flag=True,
    help="Keep what is read beside each file, as a hidden Parquet file, and read that next time.",
)


def output_option(name: str, **settings: Any) -> Callable[[Command], Command]:
    """Return what gives a command an option for the file that it writes, and ends it before it writes over an input.

    Its inputs are all other parameters that are paths, but not of folders alone.
    """
    options: dict[str, Any] = {"metavar": "FILE", "type": FILE} | settings

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def checked(*args: Any, **given: Any) -> Any:
            written = given[name.removeprefix("--")]
            if written is not None:
                refuse_inputs(str(written), name)
            return command(*args, **given)

        return click.option(name, **options)(checked)  # type: ignore[return-value]

    return add


def refuse_inputs(path: str, option: str = "--output") -> None:
    """Raise where the file `path`, which `option` names, is one that the current command reads.

    Raises:
        UsageError: it is.

    """
    context = click.get_current_context(silent=True)
    if context is None or not os.path.exists(path):  # noqa: PTH110
        return
    from analyzers.readers import is_source

    for each in context.command.params:
        if isinstance(each.type, click.Path) and each.type.file_okay and option not in each.opts:
            given = context.params.get(each.name or "")
            for source in filter(None, given if isinstance(given, tuple) else (given,)):
                # What is no capture, or not there, is for whoever reads it to tell.
                with contextlib.suppress(CaptureError):
                    if is_source(path, [source]):
                        raise UsageError(f"{option} {path} is one of the inputs ({source}); give another file")


def write_whole(path: str, data: str | bytes) -> None:
    """Write `data` to `path`: who reads it finds what was there before or all of it, also if the command is stopped.

    Raises:
        UsageError: the file cannot be written, or the command reads it.

    """
    refuse_inputs(path)
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    try:
        if target.exists() and not target.is_file():  # a pipe, /dev/stdout
            target.write_bytes(content)
            return
        target = target.resolve()  # a link stays one
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
