"""How far a fetch is, on one line of a terminal."""

import time
from types import TracebackType
from typing import Self, TextIO

EVERY = 0.2
"""Seconds between two updates."""


class ProgressLine:
    """Writes the line to `stream` where that is a terminal, and clears it at the end of a `with` block."""

    def __init__(self, stream: TextIO) -> None:
        """Write nothing yet."""
        self._stream = stream
        self._shown = stream.isatty()
        self._next = 0.0
        self._width = 0

    def __call__(self, spans: int, traces: int, share: float) -> None:
        """Take the spans and traces so far, and the share of the time that is done, 0 to 1."""
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        self._write(f"{share:4.0%}  {spans:,} spans of otel_cache in {traces:,} traces")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def __enter__(self) -> Self:
        """Return the line."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Clear the line."""
        if self._width:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()
