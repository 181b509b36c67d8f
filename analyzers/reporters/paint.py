"""Colours of a terminal, where they are asked for."""

BOLD, RED, GREEN, YELLOW, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


class Paint:
    """Puts a colour around a line, or leaves it as it is."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, code: str, line: str) -> str:
        """Return `line` in the colour of `code`."""
        return f"{code}{line}{PLAIN}" if self._color else line
