"""Points of vLLM's counters from OTLP's Protobuf."""

import math

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, NumberDataPoint

from analyzers.readers.counters import DELTA, NAMES, NO_VALUE, Point, make_point
from analyzers.readers.protobuf_values import flatten
from analyzers.readers.tally import SpanError

_TELLING = b"prefix_cache_"


def read_metrics(data: bytes) -> list[Point] | None:
    """Return the points in a message that holds the counters; None where it is one of spans, or of other metrics.

    Nothing in a message says of which signal it is: one with a metric of a counter's name, and its points, is of
    metrics. A point that is damaged is passed over.
    """
    if _TELLING not in data:
        return None
    try:
        message = MetricsData.FromString(data)
    except DecodeError:
        return None
    found: list[Point] | None = None
    for owner in message.resource_metrics:
        resource = flatten(owner.resource.attributes)
        for metric in (metric for scope in owner.scope_metrics for metric in scope.metrics):
            if metric.name not in NAMES or not metric.HasField("sum"):
                continue
            delta = metric.sum.aggregation_temporality in DELTA
            found = [] if found is None else found
            for point in metric.sum.data_points:
                attributes = {**resource, **flatten(point.attributes)}
                try:
                    found += make_point(attributes, metric.name, point.time_unix_nano, _value(point), delta)
                except SpanError:
                    continue
    return found


def _value(point: NumberDataPoint) -> float:
    kind = point.WhichOneof("value")
    return math.nan if kind is None or point.flags & NO_VALUE else float(getattr(point, kind))
