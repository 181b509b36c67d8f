"""A capture's own requests, as the lab sends them: their lengths, what they share, when they came and how they ended.

Tokens never leave vLLM's process, fingerprints do: they say how much of a prompt an earlier request had. So a prompt is
rebuilt as that much of the earlier one, its answer included, and tokens of its own behind it. Multimodal items are part
of a fingerprint, and so of what is shared. All lengths in tokens.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.events import Event, Evicted, LookupRow, Stored, events_of, timeline
from analyzers.model import Capture
from analyzers.prompts import UNKNOWN, Kind, Prompt, PromptBook, kind_of, marks_of
from analyzers.settings import Settings, read_settings
from analyzers.vllm_lab.scenario import LabRequest, Part
from analyzers.vllm_lab.tokens import NUMBERED
from otel_cache.errors import CaptureError

Name = tuple[int, str]
ABORTED, STOPPED = "abort", "stop"
GOES_ON = 4096
"""Tokens that an aborted request, or one that ended by itself, would have generated beyond its last."""


@dataclass(frozen=True)
class Recorded:
    """The requests of a capture.

    Attributes:
        requests: in the order of arrival, one sending each; their replicas are numbers.
        replicas: names, by number.
        notes: what the capture does not tell, a sentence each.

    """

    requests: Sequence[LabRequest]
    replicas: Sequence[str]
    notes: Sequence[str] = ()


@dataclass
class _Sent:
    """A request as recorded: `start` and `end` in ns, `parts` its prompt, `answer` the tokens that it generated."""

    name: Name
    id: str
    start: int
    row: Mapping[str, Any]
    prompt: Prompt
    end: int = 0
    answer: int = 1
    reason: str = ""
    parts: list[Part] = field(default_factory=list)

    def prefix(self, tokens: int) -> list[Part]:
        """Return the parts of the first `tokens` of prompt and answer."""
        found = []
        for part in (*self.parts, Part(f"output:{self.id}", max(self.answer, 1))):
            if tokens <= 0:
                break
            found.append(Part(part.segment, min(part.tokens, tokens)))
            tokens -= part.tokens
        return found


def recorded(capture: Capture) -> Recorded:
    """Return the requests of `capture`.

    Raises:
        CaptureError: there is no lookup in it whose prompt has fingerprints.

    """
    settings = [read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives]
    events = list(events_of(timeline(capture), capture))
    sent = _Rebuilt(settings).take(events, _ends(capture))
    if not sent:
        raise CaptureError("no request of the capture has fingerprints, so its prompts cannot be rebuilt")
    order = sorted(sent, key=lambda one: (one.start, one.row["sequence"]))
    names = sorted({capture.lives[one.name[0]].replica for one in order})
    number = {life.index: names.index(life.replica) for life in capture.lives if life.replica in names}
    resets = _resets(capture, events, number)
    requests = list(_requests(order, number, _Steps(capture), resets))
    return Recorded(requests, names, list(_notes(capture, sent, names, resets)))


class _Rebuilt:
    """Rebuilds prompts one after the other: each begins with what an earlier one shares with it."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        self._settings = settings
        self._books: dict[Kind, PromptBook] = {}
        self._owners: dict[tuple[str, int], tuple[_Sent, int]] = {}
        self._sent: dict[Name, _Sent] = {}
        self._ids: set[str] = set()

    def take(self, events: Sequence[Event], ends: Mapping[Name, Mapping[str, Any]]) -> list[_Sent]:
        """Return the requests that were looked up, in the order of their first lookup."""
        for event in events:
            row = event.row
            if isinstance(row, Stored):
                if (one := self._sent.get((event.life, row.request))) is not None:
                    self._store(event, row, one)
            elif not isinstance(row, Evicted):
                name = (event.life, row["request_id"])
                self._lookup(event, row, name, ends.get(name))
        return list(self._sent.values())

    def _lookup(self, event: Event, row: LookupRow, name: Name, end: Mapping[str, Any] | None) -> None:
        settings = self._settings[event.life]
        prompt = self._book(settings).read(settings, row)
        if name not in self._sent:
            if prompt.whole == UNKNOWN and UNKNOWN not in prompt.chain and not len(prompt.chain):
                return
            self._sent[name] = self._begin(name, event, row, prompt, end)
        one = self._sent[name]
        one.end = max(one.end, event.time)
        one.prompt = prompt
        self._own(settings, prompt, one, 0)

    def _begin(self, name: Name, event: Event, row: LookupRow, prompt: Prompt, end: Mapping[str, Any] | None) -> _Sent:
        settings = self._settings[event.life]
        one = _Sent(name, self._unused(name), event.time, row, prompt)
        if end is not None:
            one.start, one.end = min(end["start"], event.time), end["end"]
            one.answer, one.reason = end["output_tokens"] or 0, end["finish_reason"] or ""
        shared, owner = 0, None
        for position, identity in marks_of(prompt, settings):
            if shared < position <= prompt.tokens and identity != UNKNOWN:
                found = self._owners.get((settings.fingerprint_key_id, identity ^ prompt.mix))
                if found is not None and found[1] == position:
                    shared, owner = position, found[0]
        one.parts = owner.prefix(shared) if owner else []
        if prompt.tokens > shared:
            one.parts.append(Part(f"{NUMBERED}{len(self._sent) + 1}", prompt.tokens - shared))
        return one

    def _store(self, event: Event, row: Stored, one: _Sent) -> None:
        settings = self._settings[event.life]
        one.end = max(one.end, event.time)
        if row.values and row.first is not None:
            begin = self._book(settings).extend(one.prompt, settings, row.first, row.values)
            self._own(settings, one.prompt, one, begin)

    def _own(self, settings: Settings, prompt: Prompt, one: _Sent, begin: int) -> None:
        """Note that the prefixes of `prompt`, from entry `begin` of its chain on, are known from `one`."""
        if begin:
            step, look = settings.hash_block, settings.lookahead
            marks: Iterator[tuple[int, int]] = (
                ((index + 1) * step + look, prompt.chain[index]) for index in range(begin, len(prompt.chain))
            )
        else:
            marks = marks_of(prompt, settings)
        for position, identity in marks:
            if identity != UNKNOWN:
                self._owners.setdefault((settings.fingerprint_key_id, identity ^ prompt.mix), (one, position))

    def _book(self, settings: Settings) -> PromptBook:
        return self._books.setdefault(kind_of(settings), PromptBook())

    def _unused(self, name: Name) -> str:
        """Return the request's id, with its life behind it where another life has had the id."""
        found = name[1] if name[1] not in self._ids else f"{name[1]}@{name[0]}"
        self._ids.add(found)
        return found


class _Steps:
    """How often each life's scheduler had been called at a moment."""

    def __init__(self, capture: Capture) -> None:
        self._starts: dict[int, list[int]] = {}
        self._calls: dict[int, list[int]] = {}
        for row in capture.steps.select("life", "start", "index").sort("life", "start").iter_rows(named=True):
            self._starts.setdefault(row["life"], []).append(row["start"])
            self._calls.setdefault(row["life"], []).append(row["index"])

    def until(self, life: int, time: int) -> int:
        """Return the number of calls until the last one before `time` (ns) that scheduled something."""
        at = bisect.bisect_left(self._starts.get(life, []), time)
        return self._calls[life][at - 1] if at else 0

    def ahead(self, life: int, time: int) -> int:
        """Return the number of calls ahead of the first one after `time` (ns) that scheduled something.

        Calls that schedule nothing are not recorded: there may be some while no request is at work, and none else.
        """
        starts = self._starts.get(life, [])
        at = bisect.bisect_left(starts, time)
        return self._calls[life][at] - 1 if at < len(starts) else self.until(life, time)


def _ends(capture: Capture) -> dict[Name, Mapping[str, Any]]:
    return {(row["life"], row["request_id"]): row for row in capture.requests.iter_rows(named=True)}


def _resets(capture: Capture, events: Sequence[Event], number: Mapping[int, int]) -> list[int]:
    """Return when (ns) caches were cleared: by a reset, or because a replica's next life began."""
    times = [event.time for event in events if isinstance(event.row, Evicted) and event.row.reset]
    begun: dict[int, set[int]] = {}
    for event in events:
        if event.life in number:
            lives = begun.setdefault(number[event.life], set())
            if lives and event.life not in lives:
                times.append(event.time)
            lives.add(event.life)
    return sorted(times)


def _requests(
    order: Sequence[_Sent], number: Mapping[int, int], steps: _Steps, resets: Sequence[int]
) -> Iterator[LabRequest]:
    """Yield the requests; those that came while another was at work start with the first of these."""
    lead: _Sent | None = None
    busy = before = 0
    for one in order:
        life = one.name[0]
        alone = lead is None or one.start > busy
        reset = alone and bisect.bisect_left(resets, one.start) > bisect.bisect_left(resets, before)
        if alone:
            lead, busy = one, 0
        assert lead
        busy, before = max(busy, one.end), max(before, one.start)
        arrived = steps.ahead(life, one.start)
        yield LabRequest(
            id=one.id,
            prompt=tuple(one.parts),
            replica=number[life],
            with_=None if one is lead else lead.id,
            delay=0 if one is lead else max(0, arrived - steps.ahead(life, lead.start)),
            cache_salt=_keyed("salt", one.prompt.salt),
            lora=_keyed("lora", one.prompt.lora),
            skip_prefix_cache=bool(one.row["skipped"]),
            reset=reset,
            **_ending(one, max(1, steps.until(life, one.end) - arrived)),
        )


def _ending(one: _Sent, lasted: int) -> dict[str, Any]:
    """Return how the request ended: by its length, by a stop token, or because its client went away."""
    answer = max(1, one.answer)
    if one.reason == ABORTED:
        return {"output_tokens": answer + GOES_ON, "abort_after": lasted}
    if one.reason == STOPPED:
        return {"output_tokens": answer + GOES_ON, "stop_after": answer}
    return {"output_tokens": answer}


def _keyed(kind: str, digest: bytes) -> str | None:
    return f"{kind}-{digest.hex()}" if digest else None


def _notes(capture: Capture, sent: Sequence[_Sent], names: Sequence[str], resets: Sequence[int]) -> Iterator[str]:
    lost = capture.lookups["request_id"].n_unique() - len({one.name[1] for one in sent})
    if lost > 0:
        yield f"{lost} requests have no fingerprints, such as prompts given as embeddings; they are left out"
    if any(UNKNOWN in one.prompt.chain for one in sent):
        yield "prefixes that were cached before the capture began are not in the replay's cache at its start"
    if resets and len(names) > 1:
        yield "a reset, or a restart, clears the caches of all replicas in the lab"
    if capture.lookups["connector"].any():
        yield "what a KV connector brought is computed in the replay: the lab's engine has none unless its file says"
