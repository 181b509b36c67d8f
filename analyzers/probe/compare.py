"""Answers side by side: whether equal prompts gave equal answers, and what each server of several did. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from analyzers.probe.model import Comparison, Observation


def within(observations: Sequence[Observation]) -> Comparison:
    """Compare, on one server, each answer with the first one to the same prompt."""
    firsts: dict[tuple[int, ...], Observation] = {}
    pairs = []
    for one in observations:
        first = firsts.setdefault(one.send.prompt.units, one)
        if first is not one:
            pairs.append((first, one))
    return _compare(pairs)


def between(ours: Sequence[Observation], theirs: Sequence[Observation]) -> Comparison:
    """Compare the answers of two servers to the same sends."""
    return _compare(zip(ours, theirs, strict=True))


def _compare(pairs: Iterable[tuple[Observation, Observation]]) -> Comparison:
    compared = 0
    differing: list[dict[str, Any]] = []
    by: Literal["tokens", "text"] = "tokens"
    for first, second in pairs:
        compared += 1
        one: Sequence[Any] | None = first.answer.token_ids
        other: Sequence[Any] | None = second.answer.token_ids
        if one is None or other is None:
            by, one, other = "text", first.answer.text, second.answer.text
        at = next((index for index, (a, b) in enumerate(zip_longest(one, other)) if a != b), None)
        if at is not None:
            numbers = [first.send.number, second.send.number]
            differing.append({"shape": second.send.shape, "sends": numbers, "at": at})
    return Comparison(compared, differing, by)


@dataclass(frozen=True)
class Summary:
    """What one server did over the whole probe.

    Attributes:
        cold, repeats: median seconds to the first token, of cold sends and of repeats.
        throughput: output tokens per second of the requests' time.
        hit_rate: share of the prompts' tokens that came from the cache; None: nobody says.
        acceptance: share of the drafted tokens that were accepted; None without speculation.

    """

    cold: float
    repeats: float
    throughput: float
    hit_rate: float | None
    acceptance: float | None


def summarize(observations: Sequence[Observation]) -> Summary:
    """Sum up what came of all sends."""
    cold = [one.answer.time_to_first_token for one in observations if one.send.cold]
    repeats = [one.answer.time_to_first_token for one in observations if not one.send.cold]
    output = sum(one.answer.output_tokens or len(one.answer.token_ids or ()) for one in observations)
    hits = [one.hit for one in observations if one.hit is not None]
    prompts = sum(one.prompt_tokens for one in observations if one.hit is not None)
    deltas = [one.delta for one in observations if one.delta]
    drafted, accepted = sum(each.drafted or 0 for each in deltas), sum(each.accepted or 0 for each in deltas)
    return Summary(
        statistics.median(cold),
        statistics.median(repeats),
        output / sum(one.answer.duration for one in observations),
        sum(hits) / prompts if prompts else None,
        accepted / drafted if drafted else None,
    )
