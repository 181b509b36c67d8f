"""What the figures rest on: what was read, what is missing, and how far the clocks agree."""

from collections.abc import Mapping

import polars as pl

from analyzers.events import Holes
from analyzers.model import Capture, Coverage
from otel_cache.semconv import names


def coverage_of(capture: Capture, lookups: int, holes: Holes) -> Coverage:
    """Return the coverage of `capture`, of which `lookups` requests are reported."""
    samplers = {str(life.attributes[names.SAMPLER]) for life in capture.lives if names.SAMPLER in life.attributes}
    evidence = [frame.select("start") for frame in (capture.lookups, capture.stores, capture.evicts)]
    times = pl.concat(evidence)["start"]
    incomplete = {life.replica for life in capture.lives if holes.ever(life.index)}
    return Coverage(
        spans=capture.spans,
        replicas=len({life.replica for life in capture.lives}),
        lookups=lookups,
        missing_records=max(0, holes.missing - capture.sampled_spans),
        skipped_lines=capture.skipped_lines,
        foreign_spans=capture.foreign_spans,
        notes=capture.notes,
        sampled_spans=min(capture.sampled_spans, holes.missing) or capture.sampled_spans,
        unexported_spans=capture.unexported_spans,
        samplers=sorted(samplers),
        begin=int(times.min() or 0),  # type: ignore[arg-type]
        end=int(times.max() or 0),  # type: ignore[arg-type]
        incomplete_replicas=sorted(incomplete),
        skew=_skew(capture),
    )


def _skew(capture: Capture) -> Mapping[str, float]:
    """Return by how much (ms) at least each replica's clock differs from its callers'.

    A request begins while its caller waits for it. Where it does not, the clocks differ by at least that much.
    """
    callers = {row["span_id"]: (row["start"], row["end"]) for row in capture.usages.iter_rows(named=True)}
    least: dict[int, list[float]] = {}
    for row in capture.requests.iter_rows(named=True):
        if (caller := callers.get(row["parent_span_id"])) is None:
            continue
        behind, ahead = caller[0] - row["start"], row["start"] - caller[1]
        differs = -behind if behind > 0 else max(ahead, 0)
        least.setdefault(row["life"], []).append(differs / 1e6)
    found: dict[str, float] = {}
    for life, values in sorted(least.items()):
        low, high = min(values), max(values)
        found[capture.lives[life].replica] = round(low if -low > high else high, 3)
    return found
