"""How fast replicas prefill and decode, as the capture's own steps show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from analyzers.model import Range

LEAST_STEPS = 3
SMALLEST = 0.25
"""Steps below this share of the largest prefill say more of a step's fixed cost than of the speed."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second that prefill steps computed, and seconds per decode step: first and last decile."""

    prefill: Range | None
    decode_step: Range | None
    running: float


def speeds(steps: pl.DataFrame) -> dict[int, Speed]:
    """Return the speed of each life in `Capture.steps`."""
    found: dict[int, Speed] = {}
    timed = steps.filter(pl.col("execute_duration") > 0)
    for life in timed["life"].unique(maintain_order=True).to_list():
        rows = timed.filter(pl.col("life") == life)
        prefill: list[int] = rows["prefill_tokens"].to_list()
        least = max(1.0, SMALLEST * max(prefill, default=0))
        duration: list[float] = rows["execute_duration"].to_list()
        rates = [tokens / seconds for tokens, seconds in zip(prefill, duration, strict=True) if tokens >= least]
        decoding = rows.filter(pl.col("prefill_tokens") == 0, pl.col("decode_tokens") > 0)
        running = sorted(decoding["running_requests"].to_list() or [1])
        found[life] = Speed(_range(rates), _range(decoding["execute_duration"].to_list()), running[len(running) // 2])
    return found


def total_seconds(tokens: Mapping[int, int], known: Mapping[int, Speed]) -> Range | None:
    """Return how long computing `tokens` (by life) took; None where no life shows a speed.

    A life that shows none is as fast as the fastest of the others, or as slow as the slowest.
    """
    told = [speed.prefill for speed in known.values() if speed.prefill]
    if not told or not tokens:
        return None
    slowest, fastest = min(low for low, _ in told), max(high for _, high in told)
    low = high = 0.0
    for life, count in tokens.items():
        speed = known.get(life)
        least, most = (speed.prefill if speed else None) or (slowest, fastest)
        low += count / most
        high += count / least
    return low, high


def _range(values: Sequence[float]) -> Range | None:
    if len(values) < LEAST_STEPS:
        return (min(values), max(values)) if values else None
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return ordered[tenth], ordered[-1 - tenth]
