"""The retention intervals that a sweep tries where none is named. All lengths in tokens."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice, zip_longest
from math import isqrt, lcm, log

from analyzers.vllm_lab.scenario import Engine

MULTIPLES = 8
"""How many multiples of the scheduler block are tried where no retention interval is named, beside 0 and dense."""


def intervals(engine: Engine, shared: Iterable[int]) -> list[int | str]:
    """Return retention intervals that vLLM takes: 0, dense, and multiples of the scheduler block in between.

    The multiples are those that keep a state where repeats need one: they divide the last boundary in what a sending
    shares, or, as speculation may make a hit end a block earlier, the one before it. Of too many, those that divide the
    most of these boundaries, small and large ones alike, and the scheduler block itself.

    Args:
        engine: whose block sizes count.
        shared: tokens that each sending shares with earlier ones.

    """
    block = lcm(*engine.block_sizes())
    boundaries: Counter[int] = Counter()
    for tokens in shared:
        boundaries[tokens // block] += 1
        if engine.speculative is not None:
            boundaries[tokens // block - 1] += 1
    divided: Counter[int] = Counter({1: boundaries.total()})
    for boundary, count in boundaries.items():
        if boundary > 1:
            divided.update(dict.fromkeys(_divisors(boundary), count))
    largest = max(divided)
    # Equal shares of the way from 1 to the largest, by ratio.
    shares: dict[int, list[int]] = {}
    for multiple in sorted(divided, key=lambda each: (-divided[each], -each)):
        share = min(MULTIPLES - 1, int(MULTIPLES * log(multiple) / log(largest))) if largest > 1 else 0
        shares.setdefault(share, []).append(multiple)
    rounds = (multiple for each in zip_longest(*(shares[share] for share in sorted(shares))) for multiple in each)
    chosen = islice((multiple for multiple in rounds if multiple is not None), MULTIPLES)
    return [0, *(multiple * block for multiple in sorted(chosen)), "dense"]


def _divisors(number: int) -> set[int]:
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return {*small, *(number // each for each in small)}
