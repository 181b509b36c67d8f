"""The boundary table: what every group had where a hit was needed. All lengths and positions in tokens."""

from collections.abc import Sequence

from analyzers.model import GroupState, LookupResult
from analyzers.reporters.layout import Align, shorten, table

HEADER = ("group", "kind", "block", "asked", "had", "below", "above")
_ALIGNED: tuple[Align, ...] = ("<", "<", ">", ">", ">", ">", ">", "<")


def boundary_table(lookup: LookupResult, width: int, indent: str) -> list[str]:
    """Return the table of a lookup's groups; groups in the same state share a row."""
    return table((*HEADER, f"at {lookup.needed_boundary:,}"), state_rows(lookup), _ALIGNED, width, indent)


def state_rows(lookup: LookupResult) -> list[tuple[str, ...]]:
    """Return the rows of that table: the columns of `HEADER`, and what became of the state at the needed boundary."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for state in sorted(lookup.groups, key=lambda each: each.group):
        rows.setdefault(_cells(state), []).append(state.group)
    return [(ranges(groups), *cells) for cells, groups in rows.items()]


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as `0-2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _cells(state: GroupState) -> tuple[str, ...]:
    return (
        shorten(state.kind, 24),
        f"{state.block_size:,}",
        _tokens(state.asked_tokens),
        f"{state.hit_tokens:,}",
        _tokens(state.stored_below),
        _tokens(state.stored_above),
        _state(state),
    )


def _tokens(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"


def _state(state: GroupState) -> str:
    """Say what became of the group's state at the needed boundary."""
    said = {
        "stored": "stored",
        "masked": "computed, refused by the mask",
        "not_materialized": "never made",
        "evicted": "stored, then evicted",
        "unknown": "unknown",
    }[state.state]
    if state.chunk_end is not None:
        said += f"; chunk ended at {state.chunk_end:,}"
    if state.wanted:
        said += f"; mask wanted {_positions(state.wanted)}"
    return said


def _positions(positions: Sequence[int]) -> str:
    shown = ", ".join(f"{position:,}" for position in positions[:4])
    return f"{shown} and {len(positions) - 4} more" if len(positions) > 4 else shown
