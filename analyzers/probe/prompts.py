"""Prompts of exact lengths that nobody has sent before, and others that share a prefix of exact length with them.

A prompt is made of units: token ids, or words that all have the same number of tokens. What is drawn depends on the
salt alone, so that a probe can be repeated.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORDS = tuple(f"w{number}" for number in range(100, 512))
"""A letter and three digits: whatever a tokenizer makes of one, it makes of each."""
SAMPLE = " ".join(WORDS) + (
    " The cache keeps what was computed for a prompt, so that another prompt with the same beginning need not compute"
    " it again. Time, water, people, number, sound, place, year, work, name, house, picture, animal, point, mother,"
    " world, earth, father, plant, country, school, letter, answer, story, river, mountain, paper, music, morning."
)
"""What a tokenizer is asked for: tokens that are ordinary in its vocabulary."""
COMMON_IDS = range(100, 256)
"""Token ids that every vocabulary has. No others may be guessed: vLLM without a tokenizer does not check them, and one
beyond the vocabulary ends its engine."""
MIN_TOKENS = 8
"""Fewer different tokens in a vocabulary do not make prompts that differ from their first block on."""


@dataclass(frozen=True)
class Prompt:
    """A prompt of `tokens` tokens, as it is sent: token ids, or a text."""

    units: tuple[int, ...]
    tokens: int
    body: list[int] | str


class Vocabulary:
    """What prompts are made of.

    Attributes:
        per_unit: tokens per unit.
        base: tokens that every prompt has besides, such as one for its beginning.
        words: units are words, not token ids.

    """

    def __init__(self, units: Sequence[int], *, words: bool = False, per_unit: int = 1, base: int = 0) -> None:
        """Take the units: token ids, or indices into `WORDS`."""
        self.words = words
        self.per_unit = per_unit
        self.base = base
        self._units = tuple(units)

    def fresh(self, tokens: int, draw: random.Random) -> Prompt:
        """Return a prompt of `tokens` tokens, or of as many as make whole units below that."""
        return self.prompt([draw.choice(self._units) for _ in range(self._count(tokens))])

    def leaving(self, prompt: Prompt, shared: int, draw: random.Random) -> Prompt:
        """Return a prompt as long as this one that shares at most `shared` tokens with it, and no unit more."""
        keep = min(self._count(shared), len(prompt.units))
        units = [*prompt.units[:keep], *(draw.choice(self._units) for _ in range(len(prompt.units) - keep))]
        while keep < len(units) and units[keep] == prompt.units[keep]:
            units[keep] = draw.choice(self._units)
        return self.prompt(units)

    def longer(self, prompt: Prompt, draw: random.Random) -> Prompt:
        """Return the prompt with one unit more."""
        return self.prompt([*prompt.units, draw.choice(self._units)])

    def shared(self, one: Prompt, other: Prompt) -> int:
        """Return how many tokens two prompts have in common at their beginning, whole units counted."""
        pairs = zip(one.units, other.units, strict=False)
        units = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one.units), len(other.units)))
        return self.base + units * self.per_unit if units else 0

    def prompt(self, units: Sequence[int]) -> Prompt:
        """Return the prompt of these units."""
        body: list[int] | str = " ".join(WORDS[unit] for unit in units) if self.words else list(units)
        return Prompt(tuple(units), self.base + len(units) * self.per_unit, body)

    def _count(self, tokens: int) -> int:
        return max(0, (tokens - self.base) // self.per_unit)


def word_vocabulary(per_unit: int, base: int) -> Vocabulary:
    """Return the vocabulary of `WORDS` where a text of n words has `base` + n * `per_unit` tokens."""
    return Vocabulary(range(len(WORDS)), words=True, per_unit=per_unit, base=base)
