"""What requests share with earlier ones, by the prompts that were sent: first and later repeats, and conversations.

Prompts are parts: a segment's name and a length say which tokens they are. All lengths in tokens.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from analyzers.capacity import together
from analyzers.vllm_lab.scenario import LabRequest, Part, Scenario, batches

Place = tuple[int, str]
"""What stands before a part, as a number, and the part's segment."""


@dataclass(frozen=True)
class Repeat:
    """A sending that shares `shared` tokens with earlier ones; `first`: with one of them only."""

    shared: int
    first: bool
    conversation: int


@dataclass
class _Known:
    """Of a segment at a place: the two longest uses of it, and the prompts that ended in it, by length."""

    longest: int = 0
    second: int = 0
    ends: list[int] = field(default_factory=list)
    conversations: list[int] = field(default_factory=list)


def repeats(scenario: Scenario) -> dict[str, Repeat]:
    """Return, by id, what each sending shares with the ones before it, and the number of its conversation.

    A prompt goes on with a conversation if it contains the whole prompt of its latest turn, or is the same.
    """
    book = _Book()
    return {sending.id: book.take(sending.request, sending.id) for batch in batches(scenario) for sending in batch}


def repeats_by_replica(scenario: Scenario) -> dict[str, Repeat]:
    """Return the same of each sending as if its replica had never heard of the others."""
    books = [_Book() for _ in range(scenario.replicas)]
    return {
        sending.id: books[sending.replica].take(sending.request, sending.id)
        for batch in batches(scenario)
        for sending in batch
    }


class _Book:
    def __init__(self) -> None:
        self._known: dict[Place, _Known] = {}
        self._conversations = 0

    def take(self, request: LabRequest, name: str) -> Repeat:
        shared, first, conversation, goes_on = 0, False, None, True
        places = list(_places(request, request.prompt))
        for place, tokens in places:
            known = self._known.get(place)
            if known is None:
                break
            at = bisect.bisect_right(known.ends, tokens) - 1
            if at >= 0:
                conversation = known.conversations[at]
            common = min(tokens, known.longest)
            if common:
                shared, first = shared + common, known.second < common
            goes_on = common == tokens
            if not goes_on:
                break
        if conversation is None:
            self._conversations += 1
            conversation = self._conversations
        self._remember(request, name, places, conversation)
        return Repeat(min(shared, request.prompt_tokens - 1), first, conversation)

    def _remember(self, request: LabRequest, name: str, places: Sequence[tuple[Place, int]], conversation: int) -> None:
        answered = (*request.prompt, Part(f"output:{name}", request.output_tokens))
        for place, tokens in _places(request, answered):
            known = self._known.setdefault(place, _Known())
            known.longest, known.second, _ = sorted((known.longest, known.second, tokens), reverse=True)
        place, tokens = places[-1]
        known = self._known[place]
        at = bisect.bisect_left(known.ends, tokens)
        if at < len(known.ends) and known.ends[at] == tokens:
            known.conversations[at] = conversation
        else:
            known.ends.insert(at, tokens)
            known.conversations.insert(at, conversation)


def _places(request: LabRequest, parts: Sequence[Part]) -> Iterator[tuple[Place, int]]:
    """Yield (place, tokens) of each part; parts of one segment at one place begin alike."""
    before = hash((request.cache_salt, request.lora, tuple((item.content, item.offset) for item in request.items)))
    for part in parts:
        yield (before, part.segment), part.tokens
        before = hash((before, part.segment, part.tokens))


def warm_pair(
    sent: Sequence[tuple[str, int, int, int]],
) -> tuple[int, list[tuple[str, int]]]:
    """Return how many conversations were warm at once, at the most, and the two longest that were so together.

    A conversation is warm if one of its repeats hits, and none hits less than the one before it.

    Args:
        sent: (id, conversation, prompt tokens, hit tokens) of each sending, in order.

    """
    turns: dict[int, list[int]] = {}
    for index, (_, conversation, _, _) in enumerate(sent):
        turns.setdefault(conversation, []).append(index)
    warm = []
    for members in turns.values():
        hits = [sent[index][3] for index in members[1:]]
        if any(hits) and all(later >= earlier for earlier, later in pairwise(hits)):
            longest = max(sent[index][2] for index in members)
            warm.append((members[0], members[-1], longest, sent[members[0]][0]))
    return together(warm)
