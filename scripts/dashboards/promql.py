"""The registry's metrics in Prometheus: their names there, and the expressions that panels and rules share."""

import re

from otel_cache.semconv import names
from scripts.semconv.registry import Group, load

METRICS = load().metrics
UNITS = {"s": "seconds"}
"""Suffix of a UCUM unit. Those in braces, which only say what is counted, have none."""


def metric(name: str) -> str:
    """Return the name that the collector's Prometheus exporter gives a metric of the registry.

    Dots become underscores, a unit's name is appended, and `_total` where it is a counter.
    """
    group: Group = METRICS[name]
    text = label(name)
    if not re.fullmatch(r"\{.*\}", group.unit):
        text += f"_{UNITS[group.unit]}"
    return text + ("_total" if group.instrument == "counter" else "")


def label(attribute: str) -> str:
    """Return the label that stands for an attribute."""
    return attribute.replace(".", "_")


MODEL = label(names.MODEL)
REPLICA = label(names.REPLICA_ID)
LIMITED_BY = label(names.LOOKUP_LIMITED_BY)
LOST_TO = label(names.LOOKUP_LOST_TO)
KIND = label(names.GROUP_KIND)
FINISH_REASON = label(names.REQUEST_FINISH_REASON)


def series(name: str, where: str = "", suffix: str = "") -> str:
    """Return the selector of a metric's series."""
    return metric(name) + suffix + (f"{{{where}}}" if where else "")


def increase(name: str, window: str, by: str, where: str = "") -> str:
    """Return by how much a counter rose within the window."""
    return f"sum by ({by}) (increase({series(name, where)}[{window}]))"


def rate(name: str, window: str, by: str = "", where: str = "") -> str:
    """Return how fast a counter rises, per second."""
    return f"sum{f' by ({by})' if by else ''} (rate({series(name, where)}[{window}]))"


def share(part: str, whole: str) -> str:
    """Return a part of a whole; nothing where the whole is 0, which would be no number."""
    return f"{part}\n/\n({whole} > 0)"


def or_zero(part: str, whole: str) -> str:
    """Return a part that has no series before it first happens: 0 wherever the whole is there."""
    return f"({part} or 0 * {whole})"


def quantile(q: float, name: str, window: str, by: str = "", where: str = "") -> str:
    """Return a quantile of a histogram, estimated from its buckets."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({series(name, where, '_bucket')}[{window}])))"
