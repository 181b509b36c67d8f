"""Points of vLLM's counters of its prefix cache, from OTLP metrics in JSON and in Protobuf.

A collector that scrapes vLLM's Prometheus endpoint writes them so. Names of 0.26 to 0.33 and, as `vllm:gpu_...`, of
vLLM before 0.10; Prometheus appends `_total`, which a receiver may take away again.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from analyzers.readers.otlp_values import ABSENT, DECODE_ERRORS, Attribute, Camel, flatten
from analyzers.readers.spans import check_time
from analyzers.readers.tally import SpanError

QUERIES, HITS = "queries", "hits"
NAMES = {
    f"vllm:{prefix}prefix_cache_{what}{suffix}": what
    for prefix in ("", "gpu_")
    for what in (QUERIES, HITS)
    for suffix in ("", "_total")
}
"""What each counter counts: tokens that were asked for, and those that were hit."""
DELTA = frozenset((1, "1", "AGGREGATION_TEMPORALITY_DELTA"))
NO_VALUE = 1
"""Flag of a point that says that its series has ended."""


class Point(msgspec.Struct, gc=False, frozen=True):
    """One point of a counter.

    Attributes:
        series: the attributes of resource and point, as JSON with sorted keys: what tells a series from others.
        name: of the metric.
        what: `queries` or `hits`.
        time: nanoseconds since the epoch.
        value: tokens, since the counter began or, where `delta`, since the point before.

    """

    series: str
    name: str
    what: str
    time: int
    value: float
    delta: bool


class _DataPoint(Camel):
    attributes: list[Attribute] | None = None
    time_unix_nano: int | str | None = None
    as_double: float | str | None = None
    as_int: int | str | None = None
    flags: int | None = None


class _Sum(Camel):
    data_points: list[_DataPoint] | None = None
    aggregation_temporality: int | str | None = None


class _Metric(Camel):
    name: str | None = None
    sum: msgspec.Raw = ABSENT


class _ScopeMetrics(Camel):
    metrics: list[_Metric] | None = None


class _Resource(Camel):
    attributes: list[Attribute] | None = None


class _ResourceMetrics(Camel):
    resource: _Resource | None = None
    scope_metrics: list[_ScopeMetrics] | None = None


_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_resource_decoder = msgspec.json.Decoder(_ResourceMetrics)
_sum_decoder = msgspec.json.Decoder(_Sum)


def read_points(raw: msgspec.Raw) -> Iterator[Point]:
    """Yield the points in the `resourceMetrics` of a line; what is damaged or something else is passed over."""
    try:
        resources = _decoder.decode(raw)
    except DECODE_ERRORS:
        return
    for encoded in resources:
        if b"prefix_cache_" not in bytes(encoded):
            continue
        try:
            found = list(_points(_resource_decoder.decode(encoded)))
        except (*DECODE_ERRORS, SpanError, ValueError, OverflowError):
            continue
        yield from found


def _points(owner: _ResourceMetrics) -> Iterator[Point]:
    resource = flatten(owner.resource.attributes if owner.resource else None)
    for scope in owner.scope_metrics or ():
        for metric in scope.metrics or ():
            if metric.name not in NAMES or not metric.sum:
                continue
            total = _sum_decoder.decode(metric.sum)
            delta = total.aggregation_temporality in DELTA
            for point in total.data_points or ():
                attributes = {**resource, **flatten(point.attributes)}
                yield from make_point(attributes, metric.name or "", point.time_unix_nano, _value(point), delta)


def make_point(attributes: dict[str, Any], name: str, time: Any, value: float, delta: bool) -> Iterator[Point]:
    """Yield the point of the counter `name` with these attributes of resource and point, if it has a value.

    Raises:
        SpanError: `time` is none.

    """
    if math.isfinite(value):
        series = json.dumps({key: str(each) for key, each in attributes.items()}, sort_keys=True)
        yield Point(series, name, NAMES[name], check_time(time, "point's"), value, delta)


def _value(point: _DataPoint) -> float:
    """Return the point's value; NaN where it has none, or says that its series has ended."""
    written = point.as_double if point.as_int is None else point.as_int
    return math.nan if written is None or (point.flags or 0) & NO_VALUE else float(written)
