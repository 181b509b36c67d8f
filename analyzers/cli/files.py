"""Files that a command writes: whole, or not at all; and whether it keeps what it reads."""

import contextlib
import os
import tempfile
from pathlib import Path

import click

from otel_cache.errors import UsageError

cache_option = click.option(
    "--cache",
    is_flag=True,
    help="Keep what is read beside each file, as a hidden Parquet file, and read that next time.",
)


def write_whole(path: str, data: str | bytes) -> None:
    """Write `data` to `path`: who reads it finds what was there before or all of it, also if the command is stopped.

    Raises:
        UsageError: the file cannot be written.

    """
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
