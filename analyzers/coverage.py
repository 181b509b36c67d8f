"""What the figures rest on: what was read, what is missing, and how far the clocks agree."""

from collections.abc import Mapping

import polars as pl

from analyzers.events import Holes
from analyzers.model import Capture, Coverage
from otel_cache.semconv import names


def coverage_of(capture: Capture, holes: Holes) -> Coverage:
    """Return the coverage of `capture`, all its lookups reported."""
    keys = (names.SAMPLER, names.COLLECTOR_SAMPLER)
    samplers = {str(life.attributes[key]) for life in capture.lives for key in keys if key in life.attributes}
    sampled = sampled_spans(capture, holes)
    evidence = [frame.select("start") for frame in (capture.lookups, capture.stores, capture.evicts)]
    times = pl.concat(evidence)["start"]
    incomplete = {life.replica for life in capture.lives if holes.ever(life.index)}
    return Coverage(
        spans=capture.spans,
        replicas=len({life.replica for life in capture.lives}),
        lookups=capture.lookups.height,
        missing_records=max(0, holes.missing - sampled),
        skipped_lines=capture.skipped_lines,
        foreign_spans=capture.foreign_spans,
        notes=capture.notes,
        sampled_spans=min(sampled, holes.missing) or sampled,
        unexported_spans=capture.unexported_spans,
        samplers=sorted(samplers),
        begin=int(times.min() or 0),  # type: ignore[arg-type]
        end=int(times.max() or 0),  # type: ignore[arg-type]
        incomplete_replicas=sorted(incomplete),
        skew=_skew(capture),
    )


def sampled_spans(capture: Capture, holes: Holes) -> int:
    """Return how many spans of the evidence sampling kept back, by what is told and by the holes it left."""
    if not holes.thinned and not holes.missing:
        return 0  # what was sampled is there all the same, from elsewhere
    return max(capture.sampled_spans, holes.kept_back)


def _skew(capture: Capture) -> Mapping[str, float]:
    """Return by how much (ms) at least each replica's clock differs from its callers'.

    A request begins while its caller waits for it. Where it does not, the clocks differ by at least that much.
    """
    callers = capture.usages.unique("span_id", keep="last").select("span_id", begin="start", over="end")
    called = capture.requests.join(callers, left_on="parent_span_id", right_on="span_id")
    least: dict[int, list[float]] = {}
    for life, start, begin, over in called.select("life", "start", "begin", "over").iter_rows():
        behind, ahead = begin - start, start - over
        differs = -behind if behind > 0 else max(ahead, 0)
        least.setdefault(life, []).append(differs / 1e6)
    found: dict[str, float] = {}
    for life, values in sorted(least.items()):
        low, high = min(values), max(values)
        found[capture.lives[life].replica] = round(low if -low > high else high, 3)
    return found
