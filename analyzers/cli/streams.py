"""The standard streams as a command needs them, whatever the shell left of them.

A stream that is closed keeps its number, so that no file that is opened takes its place. What cannot be said on stderr
costs neither the result nor the exit code. What cannot be written to stdout is an error, also behind a part that could.
"""

import contextlib
import io
import os
import sys
from typing import Any, cast

STDERR = 2


class _Unheeded(io.FileIO):
    """A file whose writer does not mind whether it can be written to: it is full, closed, or its reader has gone."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            written = cast(int | None, super().write(data))
            if written is not None:  # else a pipe that is full and does not wait
                return written
        return memoryview(data).nbytes


def prepare() -> None:
    """Make stdout and stderr of this process fit for a command, unless somebody else has replaced them."""
    _keep_numbers()
    if sys.stderr is sys.__stderr__:
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        unheeded = io.BufferedWriter(_Unheeded(STDERR, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(unheeded, encoding, "backslashreplace", line_buffering=True)
    if sys.stdout is sys.__stdout__ and sys.stdout is not None and isinstance(sys.stdout.buffer, io.RawIOBase):
        # With PYTHONUNBUFFERED there is nothing that would write what is left where a part was written.
        whole = io.BufferedWriter(sys.stdout.buffer)
        sys.stdout = io.TextIOWrapper(whole, sys.stdout.encoding, "backslashreplace", line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An id that the terminal has no letters for must not end the report.
            stream.reconfigure(errors="backslashreplace")


def _keep_numbers() -> None:
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
