"""Which prompts are sent, in which order, and how long they are. Pure."""

import math
import random
from collections.abc import Iterator, Sequence

from analyzers.probe.model import AFTER, BEFORE, EXTENSION, GRID, IDENTICAL, UNRELATED, Send, Sizes
from analyzers.probe.prompts import Prompt, Vocabulary
from otel_cache.errors import UsageError

BLOCKS = 4
"""Blocks that a prompt passes."""
LEAST_TOKENS = 2048
"""A shorter prompt is computed so fast that its time tells nothing."""
BEYOND = 11 / 16
"""How far a prompt goes into its last block: its end is no boundary, nor near one."""
GRID_TOKENS = ((2815, 2548, 2272, 2049), (5975, 5337, 4708, 4402))
"""Lengths of the prompts that show where hits can end: on any grid of up to a third of the first, and of the usual
steps, their hits have nothing but the grid in common, with and without a block that speculation takes off."""
FEW_GRID_TOKENS = (1487, 1321, 1140, 778)
"""The same for a model that takes less."""
GRID_SENDS = 3


def prompt_tokens(grid: int, limit: int | None) -> int:
    """Return the length of a prompt over blocks of `grid` tokens, in a model that takes `limit` of them.

    Raises:
        UsageError: not even one block and a bit fit.

    """
    beyond = max(2, round(grid * BEYOND))
    blocks = max(BLOCKS, math.ceil(LEAST_TOKENS / grid))
    if limit is not None:
        blocks = min(blocks, (limit - beyond - 1) // grid)
        if blocks < 1:
            raise UsageError(
                f"the model takes {limit:,} tokens at most, and a hit cannot end before {grid:,}: nothing that fits "
                "can be cached"
            )
    return blocks * grid + beyond


def sizes(grid: int | None, source: str, wanted: int | None, limit: int | None, lookahead: int = 0) -> Sizes:
    """Return what prompts are cut to; `wanted` is the length that was asked for.

    Raises:
        UsageError: the length that was asked for is beyond the model's, or below one block.

    """
    length = prompt_tokens(grid or 1, limit) if wanted is None else wanted
    if limit is not None and length + 1 > limit:
        raise UsageError(
            f"--prompt-tokens {length:,}: the model takes {limit:,} tokens at most, one of a longer sibling and the "
            "answer's among them"
        )
    boundary = (length - 1) // (grid or 1) * (grid or 1)
    if boundary < 1:
        raise UsageError(f"--prompt-tokens {length:,}: below one block of {grid:,} tokens nothing is cached")
    return Sizes(grid, source, length, boundary, lookahead)


def plan(sizes: Sizes, vocabulary: Vocabulary, repeats: int, draw: random.Random) -> list[Send]:
    """Return what is sent: an unrelated prompt, the four shapes with `repeats` each, an unrelated prompt."""
    length, boundary = sizes.prompt_tokens, sizes.boundary
    sends = [Send(UNRELATED, 0, vocabulary.fresh(length, draw), 0)]

    def shape(name: str, parent: Prompt, child: Prompt) -> None:
        sends.append(Send(name, 0, parent, 0))
        shared = vocabulary.shared(parent, child)
        sends.extend(Send(name, number, child, shared) for number in range(1, repeats + 1))

    same = vocabulary.fresh(length, draw)
    shape(IDENTICAL, same, same)
    parent = vocabulary.fresh(length, draw)
    shape(EXTENSION, parent, vocabulary.longer(parent, draw))
    parent = vocabulary.fresh(length, draw)
    # A unit that differs may begin with the same tokens: all of it has to lie below the boundary.
    shape(BEFORE, parent, vocabulary.leaving(parent, boundary - vocabulary.per_unit, draw))
    parent = vocabulary.fresh(length, draw)
    just_after = boundary + max(1, sizes.lookahead)
    # Whole units: the first end at or after the boundary.
    shape(AFTER, parent, vocabulary.leaving(parent, just_after + vocabulary.per_unit - 1, draw))
    sends.append(Send(UNRELATED, 0, vocabulary.fresh(length, draw), 0))
    return sends


def grid_lengths(limit: int | None) -> Sequence[Sequence[int]]:
    """Return the sets of lengths to try for the grid, one after the other, in a model that takes `limit` tokens."""
    fitting = [lengths for lengths in GRID_TOKENS if limit is None or lengths[0] < limit]
    return fitting or [[length for length in FEW_GRID_TOKENS if limit is None or length < limit]]


def grid_plan(lengths: Sequence[int], vocabulary: Vocabulary, draw: random.Random) -> Iterator[Send]:
    """Yield the sends whose hits show the grid: prompts of these lengths, each more than once."""
    for length in lengths:
        prompt = vocabulary.fresh(length, draw)
        for number in range(GRID_SENDS):
            yield Send(GRID, number, prompt, prompt.tokens if number else 0)


def grid_is_sure(grid: int | None, lengths: Sequence[int]) -> bool:
    """Whether prompts of these lengths are long enough for what they show."""
    return grid is not None and 3 * grid <= lengths[0]


def grid_of(hits: Sequence[int | None]) -> int | None:
    """Return the greatest grid that all hits lie on; None where nothing hit."""
    return math.gcd(*(hit for hit in hits if hit)) or None
