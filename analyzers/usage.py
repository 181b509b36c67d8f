"""What vLLM's own figures, and those of other programs, say of a request, against its lookup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.model import EXTERNAL, Capture, LookupResult


@dataclass(frozen=True)
class Disagreement:
    """A figure of `request` that differs: `what` (`prompt tokens` or `cached tokens`) as `source` has it, and ours."""

    result: int
    source: str
    what: str
    said: int
    counted: int


def disagreements(capture: Capture, results: Sequence[LookupResult]) -> list[Disagreement]:
    """Return where a usage figure differs from the lookup of its request. `result` is an index into `results`."""
    index = {(result.life, result.request_id): number for number, result in enumerate(results)}
    found = []
    by_trace: dict[str, list[int]] = {}
    by_id: dict[str, list[int]] = {}
    for row in capture.requests.iter_rows(named=True):
        number = index.get((row["life"], row["request_id"]))
        if number is None:
            continue
        by_trace.setdefault(row["trace_id"], []).append(number)
        by_id.setdefault(row["external_id"] or row["request_id"], []).append(number)
        found += _compare(
            number, results[number], "vllm.engine.request", row["prompt_tokens"], row["cache_read_tokens"]
        )
    for row in capture.usages.iter_rows(named=True):
        numbers = by_id.get(row["request_id"] or "", [])
        if len(numbers) != 1:
            # Without an id the trace tells the request, if it holds only one.
            numbers = [n for n in by_trace.get(row["trace_id"], []) if not numbers or n in numbers]
        if len(numbers) == 1:
            number = numbers[0]
            found += _compare(number, results[number], row["name"], row["prompt_tokens"], row["cache_read_tokens"])
    return found


def _compare(
    number: int, result: LookupResult, source: str, prompt: int | None, cached: int | None
) -> list[Disagreement]:
    ours: Mapping[str, tuple[int | None, int]] = {
        "prompt tokens": (prompt, result.prompt_tokens),
        "cached tokens": (cached, result.hit_tokens + result.lost.get(EXTERNAL, 0)),
    }
    return [
        Disagreement(number, source, what, said, counted)
        for what, (said, counted) in ours.items()
        if said is not None and said != counted
    ]
