"""Positions as they stand in attributes: "8000,9600" or "1600-11200/1600" (first-last/step)."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from otel_cache.errors import RecordError


def format_positions(spans: Sequence[tuple[int, int, int]]) -> str:
    """Write runs of positions, each (first, last, step) in tokens, as text."""
    if not spans:
        return ""
    return _format_run(spans[0]) if len(spans) == 1 else ",".join(map(_format_run, spans))


@lru_cache(maxsize=1 << 12)
def _format_run(run: tuple[int, int, int]) -> str:
    # Groups of a kind have the same runs, and prompts of a length too.
    first, last, step = run
    return str(first) if first == last else f"{first}-{last}/{step}"


@lru_cache(maxsize=1 << 14)
def parse_positions(text: str) -> tuple[range, ...]:
    """Return the runs of positions in `text` as ranges; the same few texts come again and again.

    Raises:
        RecordError: the text is not of the form above.

    """
    runs = []
    for part in filter(None, text.split(",")):
        try:
            bounds, _, step = part.partition("/")
            first, _, last = bounds.partition("-")
            run = range(int(first), int(last or first) + 1, int(step or 1))
        except ValueError as error:
            raise RecordError(f"{part!r} is not a position or a run of positions (first-last/step)") from error
        if run.start < 0 or not run:
            raise RecordError(f"{part!r} is a run of positions that goes backwards or below 0")
        runs.append(run)
    return tuple(runs)


def compress_positions(positions: Iterable[int], step: int) -> list[tuple[int, int, int]]:
    """Join ascending positions that are `step` apart into runs (first, last, step)."""
    runs: list[tuple[int, int, int]] = []
    for position in positions:
        if runs and runs[-1][1] + step == position:
            runs[-1] = (runs[-1][0], position, step)
        else:
            runs.append((position, position, step))
    return runs
