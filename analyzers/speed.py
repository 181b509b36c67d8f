"""How fast replicas prefill and decode, as the capture's own steps show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analyzers.model import Range

LEAST_STEPS = 3
SMALLEST = 0.25
"""Steps below this share of the largest prefill say more of a step's fixed cost than of the speed."""


@dataclass(frozen=True)
class Measured:
    """What the prefill steps of a life took, summed from the fastest to the slowest by seconds per token.

    `tokens` and `seconds` begin with 0: the sums over the first 0, 1, 2, ... steps.
    """

    tokens: np.typing.NDArray[np.float64]
    seconds: np.typing.NDArray[np.float64]

    def fastest(self, tokens: float) -> float:
        """Return the least seconds that so many of the tokens can have taken: those of the fastest steps."""
        place = int(np.searchsorted(self.tokens, tokens, "left"))
        if place == 0:
            return 0.0
        if place == len(self.tokens):
            return float(self.seconds[-1])
        before, after = self.tokens[place - 1], self.tokens[place]
        share = (tokens - before) / (after - before)
        return float(self.seconds[place - 1] + share * (self.seconds[place] - self.seconds[place - 1]))

    def slowest(self, tokens: float) -> float:
        """Return the most seconds that so many of the tokens can have taken: those of the slowest steps."""
        return max(0.0, float(self.seconds[-1]) - self.fastest(max(0.0, self.tokens[-1] - tokens)))


@dataclass(frozen=True)
class Speed:
    """Tokens per second of prefill, and seconds per decode step: first and last decile; and what was measured.

    A decile of prefill is one of tokens: a tenth of those that the steps computed were computed slower, or faster.
    """

    prefill: Range | None
    decode_step: Range | None
    running: float
    measured: Measured | None = field(default=None, compare=False)


def speeds(steps: pl.DataFrame) -> dict[int, Speed]:
    """Return the speed of each life in `Capture.steps`."""
    found: dict[int, Speed] = {}
    timed = steps.filter(pl.col("execute_duration") > 0).select(
        "life", "prefill_tokens", "decode_tokens", "running_requests", "execute_duration"
    )
    for rows in timed.partition_by("life", maintain_order=True):
        decoding = rows.filter(pl.col("prefill_tokens") == 0, pl.col("decode_tokens") > 0)
        running = decoding["running_requests"].sort()
        usual = int(running[len(running) // 2]) if len(running) else 1
        prefill, measured = _prefill(rows.filter(pl.col("prefill_tokens") > 0))
        found[int(rows["life"][0])] = Speed(prefill, _range(decoding["execute_duration"]), usual, measured)
    return found


def total_seconds(tokens: Mapping[int, int], known: Mapping[int, Speed]) -> Range | None:
    """Return how long computing `tokens` (by life) took, least and most; None where no life shows a speed.

    Of a life's tokens that is their number by the deciles of its speed, but no less than as many took in its fastest
    steps, and no more than as many took in its slowest: of all that were computed it is the time that was measured. A
    life that shows none is as fast as the fastest of the others, or as slow as the slowest.
    """
    told = [speed.prefill for speed in known.values() if speed.prefill]
    if not told or not tokens:
        return None
    slowest, fastest = min(low for low, _ in told), max(high for _, high in told)
    low = high = 0.0
    for life, count in tokens.items():
        speed = known.get(life)
        rates = (speed.prefill if speed else None) or (slowest, fastest)
        least, most = _seconds(count, rates, speed.measured if speed else None)
        low += least
        high += most
    return low, high


def _seconds(tokens: int, rates: Range, measured: Measured | None) -> Range:
    if measured is None:
        return tokens / rates[1], tokens / rates[0]
    # More tokens than were measured go on at the deciles of the speed.
    within = min(float(tokens), float(measured.tokens[-1]))
    least, most = measured.fastest(within), measured.slowest(within)
    low, high = (min(max(within / rate, least), max(least, most)) for rate in (rates[1], rates[0]))
    return low + (tokens - within) / rates[1], high + (tokens - within) / rates[0]


def _prefill(rows: pl.DataFrame) -> tuple[Range | None, Measured | None]:
    """Return the deciles of the speed of prefill steps, and what they took."""
    if rows.is_empty():
        return None, None
    tokens, seconds = pl.col("prefill_tokens").cast(pl.Float64), pl.col("execute_duration")
    rows = rows.select(tokens=tokens, seconds=seconds).sort(pl.col("seconds") / pl.col("tokens"))
    largest = rows.filter(pl.col("tokens") >= SMALLEST * pl.col("tokens").max())
    reached = largest["tokens"].cum_sum()
    rates = largest["tokens"] / largest["seconds"]
    fast, slow = (int(reached.search_sorted(share * reached[-1], "left")) for share in (0.1, 0.9))
    sums = pl.concat([pl.DataFrame({"tokens": [0.0], "seconds": [0.0]}), rows.select(pl.all().cum_sum())])
    measured = Measured(sums["tokens"].to_numpy(), sums["seconds"].to_numpy())
    return (float(rates[slow]), float(rates[fast])), measured


def _range(values: pl.Series) -> Range | None:
    if values.is_empty():
        return None
    ordered = values.sort()
    tenth = len(ordered) // 10 if len(ordered) >= LEAST_STEPS else 0
    return float(ordered[tenth]), float(ordered[-1 - tenth])
