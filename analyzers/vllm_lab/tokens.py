"""The tokens of segments: fixed by name and length, alike in every process and on every Python version."""

import hashlib
import random
from functools import lru_cache

VOCABULARY = 32000
SPECIAL = 10
"""Ids below are left to special tokens."""


STOP = 2
"""The token that ends a request with `stop_after`."""


NUMBERED = "#"
"""Begins the names of numbered segments, whose tokens cost little: the number, then one token again and again."""


@lru_cache(maxsize=256)
def _generator(name: str, vocabulary: int) -> tuple[random.Random, list[int]]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    return random.Random(seed), []


def segment(name: str, length: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Return the first `length` tokens of the segment `name`, all of them below `vocabulary`."""
    if name.startswith(NUMBERED):
        high, low = divmod(int(name.removeprefix(NUMBERED)), vocabulary - SPECIAL)
        return [SPECIAL + low, SPECIAL + high, *[SPECIAL] * (length - 2)][:length]
    generator, known = _generator(name, vocabulary)
    # random() is promised never to change between versions; randrange and choices are not.
    while len(known) < length:
        known.append(SPECIAL + int(generator.random() * (vocabulary - SPECIAL)))
    return known[:length]


def output(sending: str, length: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Return the first `length` tokens that the sending with this id generates."""
    return segment(f"output:{sending}", length, vocabulary)
