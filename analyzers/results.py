"""From replayed lookups to results: one row per request, its tokens classed, its groups at the needed boundary."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import sub
from typing import Any

import polars as pl

from analyzers import model
from analyzers.facts import facts_of
from analyzers.ladder import Explained, Step
from analyzers.made import made
from analyzers.missing import Missing
from analyzers.model import GroupState, LookupResult
from analyzers.replay import Replayed
from analyzers.settings import Settings
from analyzers.wording import cause_of, main_class

SHOWN_POSITIONS = 16
SLICE = 1 << 15
"""So many rows are text at a time."""
_ORDER = {cls: place for place, cls in enumerate(model.CLASSES)}
_STAGES = {
    cls: stage
    for stage, classes in enumerate((
        (model.COLD, model.KEY_DIFFERENCE),
        (model.TAIL, model.IN_FLIGHT, model.EVICTED, model.RESET, model.UNKNOWN),
        (model.HELD_ELSEWHERE,),
        (model.SPECULATIVE_DROP, model.ALIGNMENT, model.NOT_MATERIALIZED, model.SHIFTED_BOUNDARY,
         model.CHECKPOINT_EVICTED),
    ))
    for cls in classes
}  # fmt: skip
"""At which stage of the funnel the tokens of a class fall out."""

_NEVER_ASKED = (None, None)

Asked = Mapping[int, tuple[int | None, int | None]]
"""By group: what a lookup asked it for first, and its hit. Tokens."""
Passes = Mapping[tuple[int, str], str]
"""By life and span id of a lookup: what it says of the groups, as text. Most lookups say what others say too."""


def passes_of(groups: pl.DataFrame) -> pl.DataFrame:
    """Return what `Capture.groups` says of the groups in each lookup: `life`, `parent_span_id`, and `said` as text.

    There are several rows of a lookup where its own are far apart.
    """
    asked, hit = pl.col("asked_tokens").list.first().fill_null(-1), pl.col("hit_tokens").fill_null(-1)
    one = pl.concat_str("group", asked, hit, separator=" ")
    slices = list(groups.iter_slices(SLICE)) or [groups]
    return pl.concat(some.group_by("life", "parent_span_id").agg(said=one.str.join(",")) for some in slices)


def _by_lookup(passes: pl.DataFrame) -> Passes:
    found: dict[tuple[int, str], str] = {}
    known: dict[str, str] = {}
    for life, span, said in passes.iter_rows():
        name = (life, span)
        if before := found.get(name):
            said = f"{before},{said}"
        # Texts that are alike are one object.
        found[name] = known.setdefault(said, said)
    return found


def _asked(said: str) -> Asked:
    """Read what `passes_of` wrote."""
    rows = (map(int, one.split(" ")) for one in said.split(",")) if said else ()
    return {group: (None if first < 0 else first, None if hit < 0 else hit) for group, first, hit in rows}


def lookup_results(
    replayed: Sequence[Replayed],
    lives: Sequence[model.Life],
    passes: pl.DataFrame,
    families: Mapping[tuple[int, str], str],
) -> list[LookupResult]:
    """Return one result per request and life: of its first admitted lookup, else of its last.

    Later lookups of a request (it was preempted) and those that led to nothing are attempts of the same request.

    Args:
        replayed: the lookups, in order.
        lives: the replicas' lives.
        passes: as `passes_of` makes them.
        families: by life and request id.

    """
    attempts: dict[tuple[int, str], int] = {}
    chosen: dict[tuple[int, str], Replayed] = {}
    for one in replayed:
        row = one.row
        name = (row.life, row.request_id)
        before = chosen.setdefault(name, one)
        if before is one:
            attempts[name] = row.attempts
            continue
        attempts[name] += row.attempts
        if not before.row.admitted:
            chosen[name] = one
    maker = _Maker(replayed, lives, _by_lookup(passes))
    return [maker.result(one, attempts[name], families[name]) for name, one in chosen.items()]


class _Maker:
    """Makes results. What many of them have alike they share."""

    def __init__(self, replayed: Sequence[Replayed], lives: Sequence[model.Life], passes: Passes) -> None:
        self._replayed = replayed
        self._lives = lives
        self._passes = passes
        kinds: dict[Settings, int] = {}
        settings = {one.row.life: one.settings for one in replayed}
        self._alike = {life: kinds.setdefault(own, life) for life, own in settings.items()}
        self._read: dict[str, Asked] = {}
        self._groups: dict[tuple[Any, ...], list[GroupState]] = {}
        self._states: dict[GroupState, GroupState] = {}
        self._lists: dict[tuple[Any, ...], list[Any]] = {}
        self._none = self._list(())

    def _list(self, of: Iterable[Any]) -> list[Any]:
        """Return a list that results share."""
        key = tuple(of)
        return self._lists.setdefault(key, list(key))

    def _group_states(self, one: Replayed, needed: int) -> list[GroupState]:
        # Of a group that the lookup does not ask nothing is needed: vLLM rebuilds what it holds.
        asked = one.explained is not None and needed > 0
        said = self._passes.get((one.row.life, one.row.span_id), "")
        residency = one.residency
        key = None
        if not (one.explained and one.explained.missing):
            key = (self._alike[one.row.life], asked, said, tuple(residency.below), tuple(residency.above))
            if known := self._groups.get(key):
                return known
        if (read := self._read.get(said)) is None:
            read = self._read[said] = _asked(said)
        found = [self._states.setdefault(state, state) for state in _group_states(one, asked, read)]
        if key:
            self._groups[key] = found
        return found

    def result(self, one: Replayed, attempts: int, family: str) -> LookupResult:
        row, explained = one.row, one.explained
        prompt, hit = row.prompt_tokens, row.hit_tokens
        lost, predicted = _lost(one)
        discarded = row.discarded_tokens
        if row.admitted and row.admitted_tokens is not None:
            discarded = max(discarded, hit - row.admitted_tokens)
        used = hit - min(hit, discarded)
        if used < hit:
            lost[model.DISCARDED] = hit - used
        needed = explained.needed if explained else hit
        missing = explained.missing if explained and explained.predicted < explained.needed else ()
        elsewhere = one.elsewhere
        life = self._lives[row.life]
        # In the order of the fields.
        return LookupResult(
            row.request_id,
            life.replica,
            life.index,
            row.start,
            attempts,
            prompt,
            used,
            predicted,
            needed,
            _in_order(lost),
            self._list(sorted(entry.group.index for entry in missing)) if missing else self._none,
            self._group_states(one, needed),
            _reason(one, missing),
            made(_cause),
            next((entry.refusal.request for entry in missing if entry.refusal), None) if missing else None,
            explained.intact if explained else None,
            facts_of(one, self._replayed) or self._none,
            made(_funnel) if explained else None,
            max(elsewhere.best, used) if elsewhere else None,
            self._list(elsewhere.replicas) if elsewhere else (),
            elsewhere.previous_turn if elsewhere else None,
            family,
            _Ladder(explained.steps) if explained and explained.steps else self._none,
        )


def _lost(one: Replayed) -> tuple[dict[str, int], int]:
    """Return the tokens per class, which sum up to what the lookup did not hit, and the predicted hit."""
    row, explained = one.row, one.explained
    prompt, hit = row.prompt_tokens, row.hit_tokens
    external = min(row.external_tokens, prompt - hit)
    steps: Sequence[Step]
    if row.skipped or not one.settings.prefix_caching:
        steps, predicted = [Step(model.SKIPPED, prompt, hit)], hit
    elif explained is None:
        steps, predicted = [Step(model.UNKNOWN, prompt, hit)], hit
    else:
        steps, predicted = explained.steps, explained.predicted
        if predicted > hit:
            steps = [*steps, Step(model.UNEXPLAINED, predicted, hit)]
    lost = _sum(steps, hit, hit + external)
    if predicted < hit:
        # More was hit than the evidence says: the steps between are no loss.
        lost[model.UNEXPLAINED] = lost.get(model.UNEXPLAINED, 0) + predicted - hit
    return lost, predicted


def _sum(steps: Iterable[Step], low: int, high: int) -> dict[str, int]:
    """Return the tokens of `steps` per class; what lies from `low` to `high` a KV connector brought."""
    lost: dict[str, int] = {}
    if low == high:
        for cls, upper, lower, _ in steps:
            lost[cls] = lost.get(cls, 0) + upper - lower
        return lost
    for step in steps:
        brought = max(0, min(step.upper, high) - max(step.lower, low))
        for cls, tokens in ((model.EXTERNAL, brought), (step.cls, step.upper - step.lower - brought)):
            if tokens:
                lost[cls] = lost.get(cls, 0) + tokens
    return lost


@lru_cache(maxsize=1 << 10)
def _are_in_order(classes: tuple[str, ...]) -> bool:
    places = [_ORDER[cls] for cls in classes]
    return places == sorted(places)


def _in_order(lost: dict[str, int]) -> dict[str, int]:
    """Return the tokens per class in the order of the classes, without those that have none."""
    if 0 not in lost.values() and _are_in_order(tuple(lost)):
        return lost
    return {cls: lost[cls] for cls in sorted(lost, key=_ORDER.__getitem__) if lost[cls]}


class _Ladder(tuple[Any, ...]):
    """The ladder of a lookup in less memory: where it begins, then the class and the end of each step."""

    __slots__ = ()

    def __new__(cls, steps: Sequence[Step]) -> "_Ladder":
        flat: list[Any] = [steps[0].upper]
        for step in steps:
            flat += step.cls, step.lower
        return super().__new__(cls, flat)

    def __call__(self, owner: LookupResult) -> list[tuple[str, int, int]]:
        return list(zip(self[1::2], self[0::2], self[2::2], strict=False))


def _funnel(result: LookupResult) -> tuple[int, ...]:
    """Return the tokens at each stage of `model.FUNNEL`."""
    falls = [0, 0, 0, 0]
    for cls, upper, lower in result.ladder:
        if (stage := _STAGES.get(cls)) is not None:
            falls[stage] += upper - lower
    return (
        *accumulate(falls, sub, initial=result.prompt_tokens), result.hit_tokens + result.lost.get(model.EXTERNAL, 0)
    )  # fmt: skip


def _cause(result: LookupResult) -> str:
    main = main_class(result.lost)
    if main is None:
        return ""
    return cause_of(main, result.lost, result.needed_boundary, result.groups, result.reason, result.facts)


def _group_states(one: Replayed, needed: bool, said: Asked) -> Iterator[GroupState]:
    """Yield the state of each group; `needed`: there is a boundary at which they had to have one."""
    missing = {entry.group.index: entry for entry in one.explained.missing} if one.explained else {}
    asked = one.settings.asked if needed else frozenset()
    residency = one.residency
    for group, below, above in zip(one.settings.groups, residency.below, residency.above, strict=True):
        number = group.index
        first, hit = said.get(number, _NEVER_ASKED)
        # Without a boundary that a hit could have had, there is nothing that a group could lack.
        state: model.State = "stored" if number in asked else "unknown"
        more: dict[str, Any] = {}
        if entry := missing.get(number):
            state = entry.state
            more = {
                "wanted": tuple(residency.wanted.get(number, ()))[-SHOWN_POSITIONS:],
                "unmade": tuple(residency.unmade.get(number, ()))[-SHOWN_POSITIONS:],
            }
            if entry.refusal:
                more |= {"chunk_start": entry.refusal.chunk_start, "chunk_end": entry.refusal.chunk_end}
        yield GroupState(number, group.kind, group.block_size, first, hit or 0, below, above, state, **more)


def _reason(one: Replayed, missing: Sequence[Missing]) -> str:
    """Return why tokens were lost to the grid, and why the boundary shifted, separated by commas."""
    if not one.explained:
        return ""
    if not missing:
        return one.explained.reason
    return ",".join(filter(None, (one.explained.reason, _shift_reason(one, one.explained, missing))))


def _shift_reason(one: Replayed, explained: Explained, missing: Sequence[Missing]) -> str:
    """Return why the needed boundary is another than the request that computed the prefix left its states at.

    "" where no state was refused or left out, or nothing tells why.
    """
    refused = [entry for entry in missing if entry.refusal]
    if not refused:
        return ""
    if any(step.cls in model.HELD_LESS for step in explained.steps):
        return "held_prefix"
    if not one.holds_producer:
        return "shared_prefix"
    if any(entry.loss and entry.loss.reason == "replaced" for entry in missing):
        return "replaced"
    if all(entry.group.flagged for entry in refused):
        return "draft_group"
    if any(group.drops for group in one.settings.groups):
        return "speculation"
    # The producer's prompt ended on a boundary, and the last token of a resend has to be computed.
    return "aligned_prompt" if one.producer_tokens % one.settings.alignment == 0 else ""
