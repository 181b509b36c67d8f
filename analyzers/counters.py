"""vLLM's counters of its prefix cache against the lookups, replica by replica.

A counter takes a request's prompt and its hit when the request is admitted; what was preempted before it leaves out.
vLLM 0.26 counts every lookup, refused ones again and again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from analyzers.model import Capture, CounterCheck, Life
from otel_cache.semconv import names

EDGE = 2_000_000_000
"""A lookup this near (ns) to a point may be in it or not: vLLM counts once the step's output is there."""
MODEL, ENGINE = "model_name", "engine"
HOSTS = ("host.name", "k8s.pod.name", "server.address", "net.host.name", "service.instance.id", "instance")
"""Attributes by which a scraped series, or a replica's resource, may name its host; a port behind it is cut off."""


@dataclass(frozen=True)
class _Series:
    """The points of one counter of one replica, in time: (ns, value), and what they count altogether."""

    source: str
    what: str
    attributes: Mapping[str, str]
    points: Sequence[tuple[int, float]]
    total: float
    resets: Sequence[tuple[int, int]]

    @property
    def begin(self) -> int:
        return self.points[0][0]

    @property
    def end(self) -> int:
        return self.points[-1][0]


def check_counters(capture: Capture) -> list[CounterCheck]:
    """Return each counter whose replicas are known, and that the capture has more than one point of."""
    if capture.counters.is_empty():
        return []
    lookups = _lookups(capture)
    checks = []
    for what in ("queries", "hits"):
        series = [each for each in _series(capture.counters) if each.what == what]
        for replicas, own in _matched(series, capture.lives):
            checks.append(_check(what, replicas, own, lookups))
    return sorted(checks, key=lambda check: (check.replicas, check.what))


def _series(counters: pl.DataFrame) -> Iterator[_Series]:
    by_series: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in counters.iter_rows(named=True):
        by_series.setdefault((row["series"], row["what"]), {}).setdefault(row["name"], []).append(row)
    for (written, what), by_name in sorted(by_series.items()):
        # vLLM had both names for a while: the shorter is the newer.
        source = min(by_name, key=len)
        rows = by_name[source]
        points = [(row["time"], row["value"]) for row in rows]
        if len(points) < 2:
            continue
        steps = list(pairwise(points))
        if rows[0]["delta"]:
            total, resets = sum(value for _, value in points[1:]), []
        else:
            # A counter that falls began anew; what it had counted since the point before is gone.
            total = sum(after if after < before else after - before for (_, before), (_, after) in steps)
            resets = [(begin, end) for (begin, before), (end, after) in steps if after < before]
        yield _Series(source, what, json.loads(written), points, total, resets)


def _matched(series: Sequence[_Series], lives: Sequence[Life]) -> Iterator[tuple[list[str], list[_Series]]]:
    """Yield replicas with their series: one each where the attributes tell, else all that are left of a model."""
    replicas: dict[str, list[Life]] = {}
    for life in lives:
        replicas.setdefault(life.replica, []).append(life)
    left, taken = [], set()
    for each in series:
        found = [name for name, own in replicas.items() if any(_names(each.attributes, life) for life in own)]
        if len(found) == 1 and found[0] not in taken:
            taken.add(found[0])
            yield found, [each]
        else:
            left.append(each)
    by_model: dict[str, list[str]] = {}
    for name, own in replicas.items():
        if name not in taken:
            by_model.setdefault(str(own[0].attributes.get(names.MODEL, "")), []).append(name)
    for model, others in by_model.items():
        fitting = [each for each in left if not model or each.attributes.get(MODEL, model) == model]
        if len(fitting) == len(others):
            yield sorted(others), fitting


def _names(series: Mapping[str, str], life: Life) -> bool:
    """Whether a series says that it is this replica's: by its id, or by its host and engine."""
    if names.REPLICA_ID in series:
        return series[names.REPLICA_ID] == life.replica
    index = str(life.attributes.get(names.DATA_PARALLEL_INDEX, 0))
    if series.get(ENGINE, index) != index:
        return False
    mine = {_host(str(life.attributes[key])) for key in HOSTS if key in life.attributes}
    mine |= {_host(life.replica), life.instance}
    return any(_host(series[key]) in mine for key in HOSTS if key in series)


def _host(written: str) -> str:
    host, colon, port = written.rpartition(":")
    return host if colon and port.isdigit() else written


def _lookups(capture: Capture) -> pl.DataFrame:
    """Return the lookups with the columns `replica`, `start`, `queries`, `hits`, and `counted`: as vLLM counts."""
    replicas = {life.index: life.replica for life in capture.lives}
    lookups = capture.lookups.filter(~pl.col("skipped")).with_columns(
        replica=pl.col("life").replace_strict(replicas, return_dtype=pl.String())
    )
    first = pl.col("admitted") & (pl.col("admitted").cum_sum().over("life", "request_id") == 1)
    return lookups.select(
        "replica", "start", "attempts", counted=first, queries=pl.col("prompt_tokens"), hits=pl.col("hit_tokens"),
        # Attempts after the first admission are those of a request that was preempted.
        early=pl.col("admitted").cum_sum().over("life", "request_id") - pl.col("admitted").cast(pl.Int64) == 0,
    )  # fmt: skip


def _check(what: str, replicas: list[str], series: Sequence[_Series], lookups: pl.DataFrame) -> CounterCheck:
    begins, ends = [each.begin for each in series], [each.end for each in series]
    own = lookups.filter(pl.col("replica").is_in(replicas))
    counted = own.filter(pl.col("counted"))
    said = round(sum(each.total for each in series))
    near = pl.col("start").is_between(min(begins) - EDGE, max(ends) + EDGE)
    sure = pl.col("start").is_between(max(begins) + EDGE, min(ends) - EDGE)
    for begin, end in (reset for each in series for reset in each.resets):
        sure &= ~pl.col("start").is_between(begin - EDGE, end + EDGE)
    most = int(counted.filter(near)[what].sum())
    every = int(own.filter(near & pl.col("early")).select((pl.col("attempts") * pl.col(what)).sum()).item())
    return CounterCheck(
        source=series[0].source,
        what=what,
        replicas=replicas,
        begin=min(begins),
        end=max(ends),
        said=said,
        least=int(counted.filter(sure)[what].sum()),
        most=most,
        with_refused=most < said <= every,
    )
