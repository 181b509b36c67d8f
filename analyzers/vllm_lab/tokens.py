"""The tokens of segments: fixed by name and length, alike in every process and on every Python version."""

import hashlib
import random
from functools import lru_cache

VOCABULARY = 32000
SPECIAL = 10
"""Ids below are left to special tokens."""


@lru_cache(maxsize=256)
def _generator(name: str) -> tuple[random.Random, list[int]]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    return random.Random(seed), []


def segment(name: str, length: int) -> list[int]:
    """Return the first `length` tokens of the segment `name`."""
    generator, known = _generator(name)
    # random() is promised never to change between versions; randrange and choices are not.
    while len(known) < length:
        known.append(SPECIAL + int(generator.random() * (VOCABULARY - SPECIAL)))
    return known[:length]


def output(sending: str, length: int) -> list[int]:
    """Return the first `length` tokens that the sending with this id generates."""
    return segment(f"output:{sending}", length)
