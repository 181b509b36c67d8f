"""Sequences: sends of one prompt, with the earlier prompt that it grew out of, on one replica and across replicas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import polars as pl

from analyzers.model import LookupResult, Sequence_
from analyzers.prompts import UNKNOWN, last_mark
from analyzers.replay import Replayed
from analyzers.wording import avoidable

Shape = Literal["identical", "extension", "conversation", "divergence"]
Name = tuple[int, str]
GROWING = ("extension", "conversation")


@dataclass(slots=True)
class _Family:
    members: list[int]
    parent: int | None = None
    shape: Shape = "identical"
    shared: int = 0
    known: set[int] | None = None

    def add(self, index: int) -> None:
        self.members.append(index)
        if self.known is not None:
            self.known.add(index)

    def has(self, index: int | None) -> bool:
        """Whether it is a member. Few families are asked."""
        if self.known is None:
            self.known = set(self.members)
        return index in self.known


def sequences(replayed: Sequence[Replayed], results: Sequence[LookupResult], requests: pl.DataFrame) -> list[Sequence_]:
    """Return the sequences of a capture: those across replicas, then by time of their first request.

    A sequence is every send of one prompt (`identical`), led by the earlier request that shares the longest prefix
    with it where there is one: `extension` if this prompt contains all of that one's, `conversation` if it contains
    its answer too or is of the same session, `divergence` if it leaves it. An extension of the last member of an
    extension joins it, so that a conversation is one sequence; so does a prompt that leaves a divergence's member
    where that one left its own parent: they are siblings.

    Args:
        replayed: the lookups, in order.
        results: one result per request that is reported.
        requests: `Capture.requests`.

    """
    result_of = {(result.life, result.request_id): result for result in results}
    named = requests.filter(pl.col("session").bin.size() > 0).select("life", "request_id", "session")
    sessions = {(life, request): session for life, request, session in named.iter_rows()}
    result_at = [result_of.get(_name(one)) for one in replayed]
    families: list[_Family] = []
    last_of: dict[int, _Family] = {}
    by_prompt: dict[tuple[int, int], _Family] = {}
    sends = [index for index, result in enumerate(result_at) if result and _is_of(replayed[index], result)]
    for index in sends:
        one = replayed[index]
        key = (one.row.life, one.prompt.whole)
        if one.prompt.whole != UNKNOWN and key in by_prompt:
            family = by_prompt[key]
            family.add(index)
        else:
            family = _new_family(index, one, replayed, sessions)
            previous = None
            if family.parent is not None and (known := last_of.get(family.parent)):
                previous = _continued(family, known)
            if previous:
                previous.add(index)
                family = previous
            else:
                families.append(family)
            by_prompt[key] = family
        last_of[index] = family
        if family.parent is not None:
            last_of.setdefault(family.parent, family)
    found = []
    for family in families:
        chosen = family.members if family.parent is None else [family.parent, *family.members]
        if len(chosen) > 1:
            members = [index for index in chosen if result_at[index]]
            rows = [result for index in members if (result := result_at[index])]
            if len(rows) > 1:
                cause = _cause(rows, [replayed[index].prompt.whole for index in members])
                found.append(_sequence(family, rows, replayed[family.members[0]], cause))
    return _across([(replayed[index].prompt.whole, result_at[index]) for index in sends]) + found


def _is_of(one: Replayed, result: LookupResult) -> bool:
    """Whether a lookup is the one that the result of its request is of."""
    row = one.row
    return bool(row.start == result.time and not row.skipped)


def _name(one: Replayed) -> Name:
    return one.row.life, one.row.request_id


def _across(every: Sequence[tuple[int, LookupResult | None]]) -> list[Sequence_]:
    """Return the sends of one prompt to several replicas, of all sends: what identifies the prompt, and the result."""
    times = Counter(whole for whole, _ in every)
    sends: dict[int, list[LookupResult]] = {}
    for whole, result in every:
        if result and whole != UNKNOWN and times[whole] > 1:
            sends.setdefault(whole, []).append(result)
    found = []
    for whole, rows in sends.items():
        replicas = [row.replica for row in rows]
        if len(set(replicas)) > 1:
            hits = [row.hit_tokens for row in rows]
            cause, name = _cause(rows, [whole] * len(rows)), name_across(rows)
            found.append(Sequence_([row.request_id for row in rows], "identical", hits, name, cause, replicas))
    return found


def name_across(rows: Sequence[LookupResult]) -> str:
    """Name the pattern of the sends of one prompt to several replicas, in time: `once per replica`, or as `pattern`.

    `never hits` needs a replica that had it twice; else it is `one send per replica`.
    """
    hits = [row.hit_tokens for row in rows]
    if _once_per_replica(rows):
        return "once per replica"
    sent_once = len({row.replica for row in rows}) == len(rows)
    return "one send per replica" if sent_once and not any(hits) else pattern(hits)


def _once_per_replica(rows: Sequence[LookupResult]) -> bool:
    """Whether every replica pays for the prefix before it hits: its first send has less than its last."""
    hits: dict[str, list[int]] = {}
    for row in rows:
        hits.setdefault(row.replica, []).append(row.hit_tokens)
    repeated = [each for each in hits.values() if len(each) > 1]
    return len(hits) > 1 and bool(repeated) and all(each[0] < each[-1] for each in repeated)


def _new_family(index: int, one: Replayed, replayed: Sequence[Replayed], sessions: Mapping[Name, bytes]) -> _Family:
    relative = one.relative
    if relative is None or one.shared < one.settings.alignment:
        return _Family([index])
    other = replayed[relative]
    if other.row.life != one.row.life or other.row.request_id == one.row.request_id:
        return _Family([index])
    longer = one.prompt.tokens > other.prompt.tokens and one.shared >= last_mark(other.prompt, other.settings)
    if not longer:
        return _Family([index], relative, "divergence", one.shared)
    session = sessions.get(_name(one))
    talks = one.shared > other.prompt.tokens or (session and session == sessions.get(_name(other)))
    return _Family([index], relative, "conversation" if talks else "extension", one.shared)


def _continued(family: _Family, known: _Family) -> _Family | None:
    """Return the family of the parent, `known`, where `family` goes on with it; None: it is one of its own."""
    if known.shape in GROWING and family.shape in GROWING and known.members[-1] == family.parent:
        if family.shape == "conversation":
            known.shape = "conversation"
        return known
    alike = known.shape == family.shape == "divergence" and known.shared == family.shared
    return known if alike and (family.parent == known.parent or known.has(family.parent)) else None


def _sequence(family: _Family, rows: Sequence[LookupResult], first: Replayed, cause: str) -> Sequence_:
    hits = [row.hit_tokens for row in rows]
    grid = first.settings.alignment
    return Sequence_(
        requests=[row.request_id for row in rows],
        shape=family.shape,
        hits=hits,
        pattern=pattern(hits),
        cause=cause,
        replicas=[row.replica for row in rows],
        shared_tokens=family.shared,
        boundary=family.shared // grid * grid,
    )


def remarkable(rows: Sequence[LookupResult], prompts: Sequence[int]) -> LookupResult | None:
    """Return the lookup that the pattern of a sequence is due to; None where nothing avoidable was lost.

    A first send may miss for what lies before the sequence; a repeat that misses is what makes a pattern, since an
    earlier send had computed all that it needed. So it is the first repeat that missed, else the first other follower
    that missed. Where none did it is the repeat that hit least, if another send of its prompt hit more; else the first
    send of a later prompt that lost most, or of sends of one prompt the first.

    Args:
        rows: in time.
        prompts: what tells the prompt of each row from others; `UNKNOWN` is like no other.

    """
    seen: set[int] = set()
    repeats: list[tuple[LookupResult, int]] = []
    others: list[LookupResult] = []
    longest: dict[int, int] = {}
    for row, prompt in zip(rows, prompts, strict=True):
        if prompt in seen:
            repeats.append((row, prompt))
        elif row is not rows[0]:
            others.append(row)
        if prompt != UNKNOWN:
            seen.add(prompt)
        longest[prompt] = max(row.hit_tokens, longest.get(prompt, 0))
    followers = [*(row for row, _ in repeats), *others]
    if missed := next((row for row in followers if not row.hit_tokens and avoidable(row.lost)), None):
        return missed
    shorter = [row for row, prompt in repeats if row.hit_tokens < longest[prompt]]
    shorter.sort(key=lambda row: row.hit_tokens)
    first = rows[:1] if not others else sorted(others, key=lambda row: -avoidable(row.lost))
    return next((row for row in (*shorter, *first, *followers) if avoidable(row.lost)), None)


def _cause(rows: Sequence[LookupResult], prompts: Sequence[int]) -> str:
    row = remarkable(rows, prompts)
    return row.cause if row else ""


def pattern(hits: Sequence[int]) -> str:
    """Name the pattern of hits (tokens) in time: `miss-miss-hit`, `short-then-full`, `never hits`, ...

    A run of equal ends is written once: 0, 0, 9600, 9600 is miss-miss-hit.
    """
    words = ["hit" if hit else "miss" for hit in hits]
    if "hit" not in words:
        return "never hits"
    positive = [hit for hit in hits if hit]
    if (
        words[0] == "miss"
        and "miss" not in words[1:]
        and positive[0] < positive[-1]
        and all(a <= b for a, b in pairwise(positive))
    ):
        return "short-then-full"
    while len(words) > 1 and words[-1] == words[-2]:
        words.pop()
    return "-".join(words)
