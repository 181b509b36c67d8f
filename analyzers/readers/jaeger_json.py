"""Jaeger's own JSON, as its page downloads a trace and its older query API answers, to OTLP JSON.

Jaeger's model knows scalars alone: an array is a string that holds its JSON. Times are whole microseconds, and a link
has no attributes any more. Scope, kind, status and trace state are tags beside the others.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from analyzers.readers.array_text import value_of

TRACE_DIGITS = 32
SPAN_DIGITS = 16
_KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_CODES = {"OK": 1, "ERROR": 2}
_SCOPE_NAME = ("otel.scope.name", "otel.library.name")
_SCOPE_VERSION = ("otel.scope.version", "otel.library.version")
_KIND, _CODE, _MESSAGE, _STATE = "span.kind", "otel.status_code", "otel.status_description", "w3c.tracestate"
_OUTSIDE = frozenset([*_SCOPE_NAME, *_SCOPE_VERSION, _KIND, _CODE, _MESSAGE, _STATE, "internal.span.format"])
"""Tags that OTLP has fields for, or that say how a span came to Jaeger."""

Json = dict[str, Any]


def to_otlp(trace: Mapping[str, Any]) -> Json:
    """Return one trace, `{"traceID": ..., "spans": [...], "processes": {...}}`, as OTLP's `{"resourceSpans": [...]}`.

    What is damaged stays so, and costs the span that it belongs to when that is read. Anything that has not the form of
    a trace gives no span.
    """
    processes = _mapping(trace.get("processes"))
    groups: dict[bytes, tuple[Json, dict[tuple[str, str], list[Json]]]] = {}
    for span in _mappings(trace.get("spans")):
        process = _mapping(processes.get(str(span.get("processID"))) or span.get("process"))
        key = msgspec.json.encode(process, order="sorted")
        if key not in groups:
            groups[key] = (_resource(process), {})
        tags = list(_mappings(span.get("tags")))
        outside = {tag["key"]: str(tag.get("value")) for tag in tags if tag.get("key") in _OUTSIDE}
        scope = _first(outside, _SCOPE_NAME), _first(outside, _SCOPE_VERSION)
        groups[key][1].setdefault(scope, []).append(_span(span, tags, outside))
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": _scope(*scope), "spans": spans} for scope, spans in scopes]}
            for resource, scopes in ((resource, by_scope.items()) for resource, by_scope in groups.values())
        ]
    }


def is_trace(value: object) -> bool:
    """Whether `value` has the form of a trace of Jaeger's."""
    return isinstance(value, dict) and isinstance(value.get("spans"), list) and "traceID" in value


def _resource(process: Mapping[str, Any]) -> Json:
    service = {"key": "service.name", "value": {"stringValue": str(process.get("serviceName", ""))}}
    return {"attributes": [service, *_attributes(_mappings(process.get("tags")))]}


def _scope(name: str, version: str) -> Json:
    return {"name": name, "version": version} if version else {"name": name}


def _span(span: Mapping[str, Any], tags: Iterable[Mapping[str, Any]], outside: Mapping[str, str]) -> Json:
    start, duration = _whole(span.get("startTime")), _whole(span.get("duration"))
    trace = _padded(span.get("traceID"), TRACE_DIGITS)
    parent, links = _references(span, trace)
    otlp: Json = {
        "traceId": trace,
        "spanId": _padded(span.get("spanID"), SPAN_DIGITS),
        "name": span.get("operationName"),
        "kind": _KINDS.get(outside.get(_KIND, ""), 0),
        "startTimeUnixNano": str(1000 * start),
        "endTimeUnixNano": str(1000 * (start + duration)),
        "attributes": _attributes(tag for tag in tags if tag.get("key") not in _OUTSIDE),
        "status": {"code": _CODES[outside[_CODE]]} if outside.get(_CODE) in _CODES else {},
    }
    if parent:
        otlp["parentSpanId"] = parent
    if links:
        otlp["links"] = links
    if _MESSAGE in outside:
        otlp["status"]["message"] = outside[_MESSAGE]
    if _STATE in outside:
        otlp["traceState"] = outside[_STATE]
    return otlp


def _references(span: Mapping[str, Any], trace: str) -> tuple[str, list[Json]]:
    """Return the parent's id, "" for none, and the links.

    As in Jaeger, the parent is the first reference of kind CHILD_OF to the span's own trace, else the first one to it.
    """
    found = [
        (_padded(each.get("traceID"), TRACE_DIGITS), _padded(each.get("spanID"), SPAN_DIGITS), each.get("refType"))
        for each in _mappings(span.get("references"))
    ]
    own = sorted((each for each in found if each[0] == trace), key=lambda each: each[2] != "CHILD_OF")
    parent = own[0] if own else None
    written = _padded(span["parentSpanID"], SPAN_DIGITS) if span.get("parentSpanID") else ""
    links = [{"traceId": each[0], "spanId": each[1]} for each in found if each is not parent]
    return parent[1] if parent else written, links


def _attributes(tags: Iterable[Mapping[str, Any]]) -> list[Json]:
    return [{"key": str(tag.get("key", "")), "value": _value(tag)} for tag in tags]


def _value(tag: Mapping[str, Any]) -> Json:
    value = tag.get("value")
    match str(tag.get("type", "")).lower():
        case "bool":
            return {"boolValue": value if isinstance(value, bool) else str(value).lower() == "true"}
        case "int64":
            # Beyond what JavaScript can hold it stands in quotes.
            return {"intValue": str(value)}
        case "float64":
            return {"doubleValue": value}
        case "binary":
            return {"bytesValue": value}
    return value_of(tag.get("key"), value if isinstance(value, str) else str(value))


def _padded(identifier: object, digits: int) -> str:
    # Old versions leave out leading zeros, and a trace id of 8 bytes has only half the digits.
    return identifier.rjust(digits, "0") if isinstance(identifier, str) else ""


def _whole(number: object) -> int:
    try:
        return int(number)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return -1


def _first(texts: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((texts[key] for key in keys if key in texts), "")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterable[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
