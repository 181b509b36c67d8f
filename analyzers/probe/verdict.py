"""What the sends of one shape say of the prefix cache. Pure; all lengths and positions in tokens.

Where our spans are joined the class of the loss is the analysis's, else it is told from hits, or from times alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from analyzers import model as classes
from analyzers.model import LookupResult
from analyzers.probe import model
from analyzers.probe.model import GRAVITY, Kind, Observation, ShapeVerdict, Sizes
from analyzers.sequences import pattern
from analyzers.wording import counted, group_names, main_class, number

FAST = 0.5
"""A send is fast if its first token came within this share of the fastest cold send's time."""
SLOW = 0.8
"""It is as slow as a cold one beyond this share of their median."""

_OF_CLASS: Mapping[str, Kind] = {
    classes.NOT_MATERIALIZED: model.CHUNK_SPLIT,
    classes.ALIGNMENT: model.COARSE,
    classes.EVICTED: model.EVICTED,
    classes.CHECKPOINT_EVICTED: model.EVICTED,
    classes.SKIPPED: model.CACHING_OFF,
    classes.UNKNOWN: model.INCONCLUSIVE,
    classes.UNEXPLAINED: model.INCONCLUSIVE,
}


@dataclass(frozen=True)
class Known:
    """What is known of a server besides the sends of one shape.

    Attributes:
        cold: seconds to the first token of every cold send.
        caching: whether the server says that prefix caching is on; None: it does not.
        speculation: it speculates.
        fixes: what to change, by class of the loss.

    """

    cold: Sequence[float]
    caching: bool | None = None
    speculation: bool = False
    fixes: Mapping[str, str] = field(default_factory=dict)

    def fast(self, one: Observation) -> bool:
        """Whether the time to the first token says that much of the prompt was reused."""
        return bool(self.cold) and one.answer.time_to_first_token < FAST * min(self.cold)

    def slow(self, one: Observation) -> bool:
        """Whether it says that nothing was."""
        return bool(self.cold) and one.answer.time_to_first_token > SLOW * statistics.median(self.cold)


def judge(shape: str, sends: Sequence[Observation], sizes: Sizes, known: Known) -> ShapeVerdict:
    """Return the verdict on the sends of one shape, the cold one first."""
    first, *repeats = sends
    hits = [one.hit for one in sends]
    told = [hit for hit in hits if hit is not None]
    expected = expected_hit(repeats[0], sizes)
    blank = ShapeVerdict(
        shape, model.INCONCLUSIVE, hits, pattern(told) if len(told) == len(hits) else "", expected, expected, ""
    )
    if known.caching is False:
        return replace(blank, kind=model.CACHING_OFF, says="prefix caching is off: the server looks nothing up")
    if (wrong := _misreported(repeats, known)) is not None:
        return replace(blank, kind=model.REPORTING_BUG, says=wrong)
    if len(told) < len(hits):
        return _by_time(blank, repeats, known)
    if first.hit:
        return replace(
            blank,
            kind=model.CONTAMINATED,
            says=f"the first send of a prompt that nobody had sent before hit {counted(first.hit)}: the server puts "
            "text of its own in front, or takes different tokens for the same",
        )
    if (lookup := repeats[0].lookup) is not None:
        return _by_spans(blank, lookup, known)
    return _by_hits(blank, repeats, sizes, known)


def expected_hit(repeat: Observation, sizes: Sizes) -> int | None:
    """Return where the first repeat's hit should end; None where the grid is unknown.

    Our spans know the engine's own rules; without them it is the last position of the grid that the shared prefix
    covers, all but the prompt's last token.
    """
    if repeat.lookup is not None:
        return max(repeat.lookup.needed_boundary, repeat.lookup.intact_boundary or 0)
    if sizes.grid is None:
        return None
    reach = min(repeat.send.shared - sizes.lookahead, repeat.prompt_tokens - 1)
    return max(0, reach) // sizes.grid * sizes.grid


def overall(verdicts: Sequence[ShapeVerdict]) -> ShapeVerdict:
    """Return the verdict that a whole probe is summed up by: the gravest, of equals the first."""
    return min(verdicts, key=lambda verdict: GRAVITY.index(verdict.kind))


def _misreported(repeats: Sequence[Observation], known: Known) -> str | None:
    """Say which figures cannot be right; None where they agree."""
    for one in repeats:
        figures = {"usage": one.usage_hit, "/metrics": one.metrics_hit, "spans": one.spans_hit}
        if one.lookup is not None:
            # What a KV connector brings is in the other two.
            figures["spans"] = one.lookup.hit_tokens + one.lookup.lost.get(classes.EXTERNAL, 0)
        said = {name: hit for name, hit in figures.items() if hit is not None}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{name} {number(hit)}" for name, hit in said.items())
            return f"repeat {one.send.number}: the figures for cached tokens disagree: {each}"
    zero = [one for one in repeats if one.hit == 0 and known.fast(one)]
    if zero and len(zero) >= math.ceil(len(repeats) / 2):
        took = statistics.median(one.answer.time_to_first_token for one in zero)
        return (
            f"the time says reuse, the counters do not: {len(zero)} of {len(repeats)} repeats had their first token "
            f"after {1e3 * took:.0f} ms, a cold prompt after {1e3 * min(known.cold):.0f} ms at least, and 0 tokens "
            "count as cached"
        )
    return None


def _by_time(blank: ShapeVerdict, repeats: Sequence[Observation], known: Known) -> ShapeVerdict:
    fast = [known.fast(one) for one in repeats]
    alone = "by the time to the first token alone"
    if all(fast):
        return replace(blank, kind=model.HIT, says=f"hit, {alone}: every repeat was much faster than a cold prompt")
    if not fast[0] and any(fast):
        late = fast.index(True) + 1
        says = f"miss-miss-hit, {alone}: repeat {late} was the first that was much faster than a cold prompt"
        return replace(blank, kind=model.MISS_MISS_HIT, says=says)
    if all(known.slow(one) for one in repeats):
        says = f"no reuse, {alone}: no repeat was faster than a cold prompt; is prefix caching on?"
        return replace(blank, kind=model.NO_REUSE, says=says)
    return replace(blank, says=f"nothing says what was cached, and the times do not tell ({alone})")


def _by_spans(blank: ShapeVerdict, lookup: LookupResult, known: Known) -> ShapeVerdict:
    later = max(hit or 0 for hit in blank.hits[1:])
    cls = main_class(lookup.lost)
    if cls is None:
        return _designed(blank, lookup.hit_tokens, lookup.lost.get(classes.COLD, 0), lookup.prompt_tokens)
    states = [state for state in lookup.groups if state.group in lookup.limiting_groups]
    late = later > lookup.hit_tokens
    boundary = later if late else lookup.needed_boundary
    kind = _late_kind(lookup.hit_tokens) if late else _OF_CLASS.get(cls, _never_kind(lookup.hit_tokens))
    blamed = group_names(states) if states else ""
    because = f" because of {blamed}" if blamed not in lookup.cause else ""
    return replace(
        blank,
        kind=kind,
        boundary=boundary,
        groups=[state.group for state in states],
        group_kinds=list(dict.fromkeys(state.kind for state in states)),
        cause=cls,
        says=f"{kind} at boundary {number(boundary)}{because}: {lookup.cause}",
        fix=known.fixes.get(cls, ""),
    )


def _by_hits(blank: ShapeVerdict, repeats: Sequence[Observation], sizes: Sizes, known: Known) -> ShapeVerdict:
    first, later = blank.hits[1] or 0, max(hit or 0 for hit in blank.hits[1:])
    reach, grid = repeats[0].send.shared, sizes.grid
    if blank.expected is None or grid is None:
        if later > first:
            says = f"{_late_kind(first)} at {number(later)}: why is not known without spans"
            return replace(blank, kind=_late_kind(first), boundary=later, says=says)
        kind = model.HIT if first else model.NO_REUSE
        says = f"hit {number(first)} of {counted(reach)} that are shared" if first else _no_reuse(repeats)
        return replace(blank, kind=kind, boundary=first or None, says=says)
    drop = grid if known.speculation else 0
    if first >= blank.expected - drop and (first or blank.expected <= drop):
        verdict = _designed(blank, first, repeats[0].prompt_tokens - reach, repeats[0].prompt_tokens)
        if verdict.kind == model.HIT and first < blank.expected:
            return replace(verdict, says=f"{verdict.says}; speculation takes the last block off a hit")
        return verdict
    missed = f"a repeat that shares {counted(reach)} should hit {number(blank.expected)}"
    if later > first:
        kind = _late_kind(first)
        says = f"{kind} at boundary {number(later)}: {missed} at once; which group is to blame is not known"
        return replace(blank, kind=kind, boundary=later, says=f"{says} without spans")
    if not first:
        return replace(blank, kind=model.NO_REUSE, says=_no_reuse(repeats))
    return replace(
        blank, kind=model.SHORT, says=f"hits end at {number(first)}: {missed}; why is not known without spans"
    )


def _designed(blank: ShapeVerdict, hit: int, unshared: int, tokens: int) -> ShapeVerdict:
    """Return the verdict where nothing avoidable was lost: a hit, unless the grid takes more than it leaves."""
    shared = tokens - unshared
    if shared - hit > hit:
        says = f"the match unit is coarse: of {counted(shared)} that are shared a hit can keep {number(hit)}"
        return replace(blank, kind=model.COARSE, boundary=hit, says=says)
    return replace(blank, kind=model.HIT, boundary=hit, says=f"hit at boundary {number(hit)} at the first repeat")


def _no_reuse(repeats: Sequence[Observation]) -> str:
    return f"none of {len(repeats)} repeats hit anything; is prefix caching on, and does the block pool hold a prompt?"


def _late_kind(first: int) -> Kind:
    return model.SHORT_THEN_FULL if first else model.MISS_MISS_HIT


def _never_kind(first: int) -> Kind:
    return model.SHORT if first else model.NO_REUSE
