"""The worksheet: on which boundary a prompt's repeats can hit, what each group keeps there, and what will come of it.

Everything is computed from a replica's settings and a number of tokens: a prompt that is sent to an empty cache, ends,
is sent again, and again; and a longer one that begins with it. All lengths and positions in tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzers.finders import agree, agreement, each_of, required_positions
from analyzers.retention import Prefill, hashed, left
from analyzers.settings import Group, Settings
from analyzers.wording import number

Verdict = str
HITS, SHORT, LATE, MISSES, TOO_SHORT, OFF = "hits", "short", "miss-miss-hit", "never hits", "too short", "off"
REPEATS = 3
"""Sends after the first one that are looked at: what a repeat teaches the cache, the next one uses."""


@dataclass(frozen=True)
class GroupRow:
    """What one group does.

    Attributes:
        kept: positions at which it has a state once the prompt has been computed, ascending.
        at_resend, at_extension: whether it has all that a hit at that boundary needs of it.

    """

    group: Group
    kept: Sequence[int]
    at_resend: bool
    at_extension: bool


@dataclass(frozen=True)
class Worksheet:
    """The worksheet of one prompt.

    Attributes:
        final_aligned_boundary: the last multiple of the scheduler block in the prompt.
        speculative_adjustment: what speculation takes off the hit of an identical resend.
        resend_boundary: the longest hit that an identical resend can have, every state being there.
        extension_boundary: the same for a longer prompt that begins with this one.
        minimum_cacheable_prefix: the shortest prefix of which a longer prompt can be given anything.
        minimum_resend_tokens: the shortest prompt of which a resend can.
        hits: what the first, second, ... repeat hits, the prompt computed alone in an empty cache.
        extension_hit: what a longer prompt hits, sent after the first send.
        verdict: `hits`, `short`, `miss-miss-hit`, `never hits`, `too short` or `off`; `says` it in a sentence.

    """

    settings: Settings
    prompt_tokens: int
    final_aligned_boundary: int
    speculative_adjustment: int
    resend_boundary: int
    extension_boundary: int
    minimum_cacheable_prefix: int
    minimum_resend_tokens: int
    groups: Sequence[GroupRow]
    hits: Sequence[int]
    extension_hit: int
    verdict: Verdict
    says: str


def worksheet(settings: Settings, tokens: int) -> Worksheet:
    """Return the worksheet of a prompt of `tokens`."""
    resend, extension = resend_boundary(settings, tokens), extension_boundary(settings, tokens)
    states = _States(settings, tokens)
    states.prefill(Prefill(tokens))
    rows = [_row(settings, group, states, resend, extension) for group in settings.groups]
    extension_hit = states.hit(None)
    hits = [states.repeat() for _ in range(REPEATS)]
    verdict = _verdict(settings, resend, hits)
    return Worksheet(
        settings=settings,
        prompt_tokens=tokens,
        final_aligned_boundary=tokens // settings.scheduler_block * settings.scheduler_block,
        speculative_adjustment=resend_boundary(settings, tokens, drop=False) - resend,
        resend_boundary=resend,
        extension_boundary=extension,
        minimum_cacheable_prefix=_least(settings, lambda n: extension_boundary(settings, n)),
        minimum_resend_tokens=_least(settings, lambda n: resend_boundary(settings, n)),
        groups=rows,
        hits=hits if settings.prefix_caching else [0] * REPEATS,
        extension_hit=extension_hit if settings.prefix_caching else 0,
        verdict=verdict,
        says=_says(verdict, settings, tokens, resend, hits, rows),
    )


def resend_boundary(settings: Settings, tokens: int, drop: bool = True) -> int:
    """Return the longest hit that an identical resend of `tokens` can have; without `drop` as if nothing were dropped.

    vLLM always computes the last token of a prompt.
    """
    return _boundary(settings, tokens, max(0, tokens - 1), drop)


def extension_boundary(settings: Settings, tokens: int, drop: bool = True) -> int:
    """Return the longest hit that a longer prompt, which begins with these `tokens`, can have."""
    return _boundary(settings, tokens, tokens + 2 * settings.scheduler_block, drop)


def _boundary(settings: Settings, tokens: int, limit: int, drop: bool) -> int:
    if not settings.prefix_caching:
        return 0
    top = hashed(settings, tokens)
    dense = {group.index: set(left(settings, group, Prefill(tokens))) for group in settings.dense_groups}

    def holds(group: Group, position: int) -> bool:
        return position in dense[group.index] if group.index in dense else position <= top

    return agree(settings, each_of(holds), limit, top, drop)


def _least(settings: Settings, boundary: Callable[[int], int]) -> int:
    """Return the fewest tokens for which `boundary` is above 0; boundaries never fall with more tokens."""
    low, high = 0, settings.hash_block
    while not boundary(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if boundary(middle) else (middle, high)
    return high


class _States:
    """What the groups hold of the prompt's prefixes, sends of it going by."""

    def __init__(self, settings: Settings, tokens: int) -> None:
        self._settings = settings
        self._tokens = tokens
        self.held: dict[int, set[int]] = {group.index: set() for group in settings.groups}

    def prefill(self, prefill: Prefill) -> None:
        """Add what the prompt leaves, computed from where its hit ended."""
        for group in self._settings.groups:
            self.held[group.index].update(left(self._settings, group, prefill))

    def holds(self, group: Group, position: int) -> bool:
        """Whether `group` has a state at `position`."""
        return position in self.held[group.index]

    def hit(self, limit: int | None) -> int:
        """Return the hit of a prompt that begins with this one and may hit up to `limit`; None: it is longer."""
        top = hashed(self._settings, self._tokens)
        most = self._tokens + 2 * self._settings.scheduler_block if limit is None else limit
        return agree(self._settings, each_of(self.holds), most, top)

    def repeat(self) -> int:
        """Send the prompt again; return its hit."""
        settings, tokens = self._settings, self._tokens
        hit, longest = agreement(settings, each_of(self.holds), max(0, tokens - 1), hashed(settings, tokens))
        self.prefill(Prefill(tokens, hit, longest if longest > hit else 0))
        return hit


def _row(settings: Settings, group: Group, states: _States, resend: int, extension: int) -> GroupRow:
    held = states.held[group.index]

    def has(boundary: int) -> bool:
        if not boundary:
            return False
        return all(position in held for position in required_positions(group, boundary))

    return GroupRow(group, sorted(held), has(resend), has(extension))


def _verdict(settings: Settings, resend: int, hits: Sequence[int]) -> Verdict:
    if not settings.prefix_caching:
        return OFF
    if not resend:
        return TOO_SHORT
    if hits[0] >= resend:
        return HITS
    if hits[0]:
        return SHORT
    return LATE if any(hits) else MISSES


def _says(
    verdict: Verdict, settings: Settings, tokens: int, resend: int, hits: Sequence[int], rows: Sequence[GroupRow]
) -> str:
    if verdict == OFF:
        return "prefix caching is off: every prompt is computed whole"
    if verdict == TOO_SHORT:
        return f"a prompt of {number(tokens)} tokens is too short: no resend of it can hit"
    if verdict == HITS:
        return f"the first repeat hits {number(hits[0])}, the most that an identical resend can"
    lacking = [str(row.group.index) for row in rows if not row.at_resend]
    says = f"the first repeat hits {number(hits[0])} of {number(resend)}"
    if lacking:
        word = "groups" if len(lacking) > 1 else "group"
        says += f": {word} {', '.join(lacking)} kept no state at {number(resend)}"
    then = next((index for index, hit in enumerate(hits) if hit >= resend), None)
    if then is not None:
        return f"{says}; repeat {then + 1} hits it"
    return f"{says}; no later one reaches it"
