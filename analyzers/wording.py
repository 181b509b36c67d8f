"""Sentences: what a lookup's largest avoidable loss means, in the field's words."""

from collections.abc import Mapping, Sequence

from analyzers import model
from analyzers.model import Fact, GroupState

_REASONS = {
    "speculation": "it wanted {wanted}; speculation makes a hit end one block earlier",
    "aligned_prompt": "it wanted {wanted}; a resend must compute its last token, so its hit ends one block earlier",
    "draft_group": "it wanted {wanted}; only the drafter's group lacks the state",
    "replaced": "its own request moved it on to another position",
    "held_prefix": "it wanted {wanted}; less of the prefix is held here, so the hit needed an earlier boundary",
    "shared_prefix": "it wanted {wanted}; the prefix that the two prompts share ends earlier",
}

_SENTENCES = {
    model.EVICTED: "{tokens} of the prefix had been cached here and were evicted before this lookup",
    model.RESET: "{tokens} of the prefix went when the cache was cleared or the replica restarted",
    model.HELD_ELSEWHERE: "another replica held {tokens} of the prefix that this one never had",
    model.IN_FLIGHT: "{tokens} of the prefix were still being computed by an earlier request",
    model.KEY_DIFFERENCE: "{tokens} match an earlier prompt under another LoRA adapter or cache salt",
    model.SKIPPED: "the lookup was skipped: prefix caching is off, or off for this request",
    model.DISCARDED: "admission threw {tokens} of the hit away",
    model.UNKNOWN: "records are missing, so no cause can be given",
    model.UNEXPLAINED: "the evidence predicts a hit that differs by {tokens} from vLLM's",
}


_SPARED = model.BY_DESIGN | model.SERVED


def milliseconds(nanoseconds: int) -> float:
    """Return nanoseconds as milliseconds, to the microsecond; below 0 where clocks differ."""
    return round(nanoseconds / 1e6, 3)


def number(tokens: int) -> str:
    """Write a count with thousands separators."""
    return f"{tokens:,}"


def counted(tokens: int) -> str:
    """Write a number of tokens with its unit."""
    return f"{number(tokens)} token{'' if tokens == 1 else 's'}"


def lookups(count: int) -> str:
    """Write a number of lookups."""
    return f"{number(count)} lookup{'' if count == 1 else 's'}"


def group_names(states: Sequence[GroupState]) -> str:
    """Name groups as `groups 0-2 (mamba)`."""
    indexes = [state.group for state in states]
    kinds = "/".join(dict.fromkeys(state.kind for state in states))
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"group{'s' if len(indexes) > 1 else ''} {text} ({kinds})"


def main_class(lost: Mapping[str, int]) -> str | None:
    """Return the class of the largest avoidable loss; None: nothing avoidable was lost."""
    losses = _avoidable(lost)
    return max(losses, key=lambda cls: (losses[cls], -model.CLASSES.index(cls)), default=None)


def avoidable(lost: Mapping[str, int]) -> int:
    """Return how many tokens a lookup lost that its cause is about, or could be."""
    return sum(_avoidable(lost).values())


def _avoidable(lost: Mapping[str, int]) -> Mapping[str, int]:
    return {cls: abs(tokens) for cls, tokens in lost.items() if cls not in _SPARED and tokens}


def cut_of(held: int, dropped: int, left: int) -> str:
    """Say how the drop of speculation was rounded up by the grid; all in tokens."""
    return (
        f"{number(held)} could have been hit; speculation drops {number(dropped)}, and the grid of hits leaves "
        f"{number(left)} of the rest"
    )


def cause_of(
    cls: str, lost: Mapping[str, int], boundary: int, states: Sequence[GroupState], reason: str, facts: Sequence[Fact]
) -> str:
    """Say in one sentence what the loss of class `cls` came from."""
    tokens, at = counted(abs(lost[cls])), number(boundary)
    said = "; ".join(fact.says for fact in facts if fact.cls == cls and not fact.data.get("also"))
    if cls == model.ALIGNMENT and "after_drop" in reason.split(","):
        dropped = lost.get(model.SPECULATIVE_DROP, 0)
        return cut_of(boundary + lost[cls] + dropped, dropped, boundary)
    if cls == model.CHECKPOINT_EVICTED and (
        shortened := next((f for f in facts if "boundary" in f.data and f.cls == cls and not f.data.get("also")), None)
    ):
        sentence = _shortened(shortened, at, states)
    else:
        sentence = _cause(cls, tokens, at, states, reason)
    return f"{sentence}: {said}" if said else sentence


def _cause(cls: str, tokens: str, at: str, states: Sequence[GroupState], reason: str) -> str:
    if cls == model.SHIFTED_BOUNDARY:
        return _shifted(at, states, reason)
    if cls == model.NOT_MATERIALIZED:
        return _never_made(at, states, tokens)
    if cls == model.CHECKPOINT_EVICTED:
        evicted = [state for state in states if state.state == "evicted"]
        return f"{group_names(evicted)} had the state at {at}, but it was evicted before this lookup"
    if cls == model.ALIGNMENT:
        return _alignment(tokens, reason)
    return _SENTENCES[cls].format(tokens=tokens)


def _shortened(fact: Fact, at: str, states: Sequence[GroupState]) -> str:
    """Say that the prefix went beyond `at`, and what became of the states there."""
    states_at = number(fact.data["boundary"])
    beyond = f"the blocks of the prefix beyond {at}, and with them the states at {states_at}, were evicted"
    said = [
        f"{group_names(own)} {what} at {at}"
        for state, what in _LACKS.items()
        if (own := [each for each in states if each.state == state])
    ]
    return f"{beyond}; {', '.join(said)}" if said else beyond


_LACKS = {
    "not_materialized": "never had a state",
    "masked": "had a state refused by the mask",
    "evicted": "lost its state",
}


def _shifted(at: str, states: Sequence[GroupState], reason: str) -> str:
    lacking = [state for state in states if state.state == "masked"]
    wanted = sorted({position for state in lacking for position in state.wanted})
    if not lacking:
        return f"the state at {at} was stored, and moved on to another position by the request that had it"
    refused = f"the state of {group_names(lacking)} at {at} was computed, but the retention mask refused it"
    if not wanted:
        return refused
    said = _listed(wanted)
    if {position for state in lacking for position in state.unmade} >= set(wanted):
        said += ", where no chunk ended"
    template = next((_REASONS[part] for part in reason.split(",") if part in _REASONS), "it wanted {wanted}")
    why = template.format(wanted=said)
    return f"{refused}: {why}"


def _listed(positions: Sequence[int]) -> str:
    """Write positions, the middle of many left out."""
    shown = [number(position) for position in positions]
    return ", ".join(shown if len(shown) <= 4 else [*shown[:2], "...", *shown[-2:]])


def _never_made(at: str, states: Sequence[GroupState], tokens: str) -> str:
    lacking = [state for state in states if state.state == "not_materialized"]
    if not lacking:
        return f"{tokens} of the prefix were in an earlier prompt, but no request ever registered them"
    chunks = sorted({(state.chunk_start, state.chunk_end) for state in lacking if state.chunk_end is not None})
    ends = " and ".join(_chunk(start, end) for start, end in chunks)
    chunk = f": the chunk that ran over it {ends}" if ends else ""
    return f"{group_names(lacking)} never had a state at {at}, because no chunk ended there{chunk}"


def _chunk(start: int | None, end: int | None) -> str:
    ended = f"ended at {number(end or 0)}"
    return ended if start is None else f"began at {number(start)} and {ended}"


def _alignment(tokens: str, reason: str) -> str:
    if "below_minimum" in reason:
        return f"no hit can end within the shared prefix of {tokens}; the last token of a prompt is always computed"
    if "inside_block" in reason:
        return f"{tokens} lie inside a block that is registered at its end only"
    return f"{tokens} lie between the last position a hit can end on and what the cache held"
