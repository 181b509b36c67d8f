"""Prompts have the lengths, and share the prefixes, that they say."""

import random
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.probe import plan
from analyzers.probe.model import AFTER, BEFORE, EXTENSION, IDENTICAL, SHAPES, UNRELATED
from analyzers.probe.prompts import COMMON_IDS, Prompt, Vocabulary, word_vocabulary

from .small_server import Small


def vocabulary_of(small: Small, words: bool) -> Vocabulary:
    """Return the vocabulary for such a server."""
    return word_vocabulary(small.tokens_per_word, small.base) if words else Vocabulary(COMMON_IDS)


def common(one: Prompt, other: Prompt, small: Small) -> int:
    """Return how many tokens two prompts really share at their beginning, by the server's own tokenizer."""
    pairs = zip(small.tokens(one.body), small.tokens(other.body), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@settings(deadline=None)
@given(st.booleans(), st.integers(1, 5), st.integers(0, 2), st.integers(16, 900), st.integers(0))
def test_lengths(words: bool, per_word: int, base: int, tokens: int, seed: int) -> None:
    """A prompt has as many tokens as the server counts: those asked for, or a word less."""
    small = Small(tokens_per_word=per_word, base=base)
    vocabulary = vocabulary_of(small, words)
    prompt = vocabulary.fresh(tokens, random.Random(seed))
    assert len(small.tokens(prompt.body)) == prompt.tokens
    assert tokens - vocabulary.per_unit < prompt.tokens <= tokens


@settings(deadline=None, max_examples=30)
@given(st.booleans(), st.integers(1, 5), st.sampled_from([16, 640, 1600]), st.integers(2, 5), st.integers(0, 3))
def test_shapes(words: bool, per_word: int, grid: int, repeats: int, lookahead: int) -> None:
    """Each shape leaves its first send where it should, however many tokens a word has."""
    small = Small(tokens_per_word=per_word)
    vocabulary = vocabulary_of(small, words)
    sizes = plan.sizes(grid, "flag", None, None, lookahead)
    sends = plan.plan(sizes, vocabulary, repeats, random.Random(1))
    assert [send.shape for send in sends] == [
        UNRELATED,
        *(shape for shape in SHAPES for _ in range(repeats + 1)),
        UNRELATED,
    ]
    for shape in SHAPES:
        parent, *children = [send for send in sends if send.shape == shape]
        assert len({child.prompt.units for child in children}) == 1
        child = children[0]
        # What is shared is whole units; the beginning of the next may be alike.
        really = common(parent.prompt, child.prompt, small)
        assert child.shared <= really < child.shared + max(vocabulary.per_unit, 1) or shape in (IDENTICAL, EXTENSION)
        if shape == IDENTICAL:
            assert child.shared == really == child.prompt.tokens
        elif shape == EXTENSION:
            assert child.shared == really == child.prompt.tokens - vocabulary.per_unit
        else:
            assert child.prompt.tokens == parent.prompt.tokens
        if shape == BEFORE:
            assert sizes.boundary - 2 * vocabulary.per_unit < really < sizes.boundary
        if shape == AFTER:
            assert sizes.boundary + max(1, lookahead) <= child.shared
            assert child.shared < sizes.boundary + max(1, lookahead) + vocabulary.per_unit
    firsts = [send.prompt.units[:16] for send in sends if send.cold]
    assert len(set(firsts)) == len(firsts), "prompts that nobody has sent share nothing"


def test_a_salt_gives_its_prompts_again() -> None:
    """The same salt the same prompts, another one others."""
    one, again, other = (Vocabulary(COMMON_IDS).fresh(100, random.Random(salt)) for salt in ("a", "a", "b"))
    assert one == again != other
