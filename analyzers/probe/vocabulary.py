"""Finds what prompts for a server can be made of: token ids that it takes, or words of a known number of tokens."""

import random
from collections.abc import Sequence

from analyzers.probe.client import RefusedError
from analyzers.probe.prompts import COMMON_IDS, MIN_TOKENS, SAMPLE, WORDS, Vocabulary, word_vocabulary
from analyzers.probe.session import Session
from otel_cache.errors import ProbeError

TRIAL_TOKENS = 32
TRIALS = (16, 48, 40)
"""Words of the texts that show how many tokens a word has: two for the line, one to check it."""


def find_vocabulary(session: Session, draw: random.Random) -> tuple[Vocabulary, str]:
    """Return what prompts are made of, and a note on what the server lacks for better ones ("" where nothing).

    Raises:
        ProbeError: the server takes no completions, or no prompts of an exact length can be made for it.

    """
    told = session.server.tokenize(session.model.name, SAMPLE)
    note = "" if told else "there is no tokenizer to ask (/tokenize): prompts are made of ids that every vocabulary has"
    known: list[Sequence[int]] = [sorted(set(told))] if told and len(set(told)) >= MIN_TOKENS else []
    refusal: RefusedError | None = None
    for extras in (session.extras, {}):
        session.extras = extras
        for ids in [*known, COMMON_IDS]:
            vocabulary = Vocabulary(ids)
            try:
                session.complete(vocabulary.fresh(TRIAL_TOKENS, draw).body, 1)
            except RefusedError as error:
                refusal = error
                continue
            session.catch_up()
            return vocabulary, note
    try:
        vocabulary = _words(session, draw)
    except RefusedError as error:
        raise ProbeError(f"{error}; the probe needs /v1/completions (token ids: {refusal})") from error
    return vocabulary, (
        f"the server takes no token ids: prompts are made of words of {vocabulary.per_unit} tokens each, and "
        "boundaries are met to within a word"
    )


def _words(session: Session, draw: random.Random) -> Vocabulary:
    """Return the words' vocabulary, calibrated by what the server counts.

    Raises:
        RefusedError: it takes no text either.
        ProbeError: it counts nothing, or the words have different numbers of tokens.

    """
    counts = []
    for number in TRIALS:
        text = " ".join(draw.choice(WORDS) for _ in range(number))
        counted = session.complete(text, 1).prompt_tokens
        session.catch_up()
        if counted is None:
            raise ProbeError(
                f"{session.server.url}: it takes no token ids and has no usage figures (usage.prompt_tokens): no "
                "prompt of a known length can be made"
            )
        counts.append(counted)
    (first, second, third), (one, two, three) = counts, TRIALS
    per_word, rest = divmod(second - first, two - one)
    base = first - one * per_word
    if rest or per_word < 1 or base < 0 or third != base + three * per_word:
        raise ProbeError(
            f"{session.server.url}: its tokenizer has different numbers of tokens for similar words "
            f"({one}, {two} and {three} words: {first}, {second} and {third} tokens), and it takes no token ids: no "
            "prompt of a known length can be made"
        )
    return word_vocabulary(per_word, base)
