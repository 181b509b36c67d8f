"""What vLLM's own figures, and those of other programs, say of a request, against its lookup."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

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
    ours = pl.DataFrame(
        {
            "life": [result.life for result in results],
            "request_id": [result.request_id for result in results],
            "prompt": [result.prompt_tokens for result in results],
            "cached": [result.hit_tokens + result.lost.get(EXTERNAL, 0) for result in results],
        },
        schema={"life": pl.Int32, "request_id": pl.String, "prompt": pl.Int64, "cached": pl.Int64},
    ).with_row_index("result")
    known = capture.requests.join(ours, on=["life", "request_id"], maintain_order="left")
    differ = (pl.col("prompt_tokens") != pl.col("prompt")) | (pl.col("cache_read_tokens") != pl.col("cached"))
    rows = known.filter(differ).select("result", "prompt_tokens", "cache_read_tokens").iter_rows()
    found = [each for row in rows for each in _compare(results, "vllm.engine.request", *row)]
    if capture.usages.is_empty():
        return found
    by_trace: dict[str, list[int]] = {}
    by_id: dict[str, list[int]] = {}
    names = pl.when(pl.col("external_id") == "").then(None).otherwise(pl.col("external_id"))
    for number, trace, name in known.select("result", "trace_id", names.fill_null(pl.col("request_id"))).iter_rows():
        by_trace.setdefault(trace, []).append(number)
        by_id.setdefault(name, []).append(number)
    for row in capture.usages.iter_rows(named=True):
        numbers = by_id.get(row["request_id"] or "", [])
        if len(numbers) != 1:
            # Without an id the trace tells the request, if it holds only one.
            numbers = [n for n in by_trace.get(row["trace_id"], []) if not numbers or n in numbers]
        if len(numbers) == 1:
            found += _compare(results, row["name"], numbers[0], row["prompt_tokens"], row["cache_read_tokens"])
    return found


def _compare(
    results: Sequence[LookupResult], source: str, number: int, prompt: int | None, cached: int | None
) -> list[Disagreement]:
    result = results[number]
    ours = (
        ("prompt tokens", prompt, result.prompt_tokens),
        ("cached tokens", cached, result.hit_tokens + result.lost.get(EXTERNAL, 0)),
    )
    return [
        Disagreement(number, source, what, said, counted)
        for what, said, counted in ours
        if said is not None and said != counted
    ]
