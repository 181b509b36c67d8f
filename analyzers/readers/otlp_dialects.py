"""OTLP JSON as tracing back ends write it, to that of the OTLP file format.

Protobuf's general JSON, which Tempo and Jaeger's older gateway write, has ids in base64 and enumerations by name. Tempo
calls the list of resources `batches`, and puts it into `trace` or not. Spans written before OTLP 0.15 stand in
`instrumentationLibrarySpans`. Jaeger's storages but the one in memory keep Jaeger's model: arrays are strings.
"""

import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from analyzers.readers.array_text import with_arrays
from analyzers.readers.spans import SPAN_ID_BYTES, TRACE_ID_BYTES

Json = dict[str, Any]

_WRAPPERS = ("result", "trace")
_RESOURCES = ("resourceSpans", "batches", "resource_spans")
_SCOPES = ("scopeSpans", "instrumentationLibrarySpans", "scope_spans")
_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES = ("UNSET", "OK", "ERROR")


def to_otlp(trace: Mapping[str, Any]) -> Json | None:
    """Return what a back end answered as `{"resourceSpans": [...]}`; None where it has no list of resources.

    An answer that is the empty object, Protobuf's for a trace without spans, gives an empty list. What is damaged stays
    so, and costs the span that it belongs to when that is read.
    """
    for wrapper in _WRAPPERS:
        if isinstance(trace.get(wrapper), dict):
            return to_otlp(trace[wrapper])
    resources = next((trace[key] for key in _RESOURCES if isinstance(trace.get(key), list)), None)
    if resources is None:
        return None if trace else {"resourceSpans": []}
    return {"resourceSpans": [_resource_spans(each) for each in resources if isinstance(each, dict)]}


def spans_of(otlp: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yield the spans in `{"resourceSpans": [...]}`, each with the name of its scope."""
    for resource in otlp["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield scope["scope"].get("name", ""), span


def _resource_spans(written: Mapping[str, Any]) -> Json:
    scopes: list[Any] = next((written[key] for key in _SCOPES if isinstance(written.get(key), list)), [])
    resource = written.get("resource")
    if isinstance(resource, dict) and "attributes" in resource:
        resource = {**resource, "attributes": with_arrays(resource["attributes"])}
    return {
        "resource": resource or {},
        "scopeSpans": [_scope_spans(each) for each in scopes if isinstance(each, dict)],
    }


def _scope_spans(written: Mapping[str, Any]) -> Json:
    scope = written.get("scope") or written.get("instrumentationLibrary")
    spans = written.get("spans")
    return {
        "scope": scope if isinstance(scope, dict) else {},
        "spans": [_span(each) for each in spans if isinstance(each, dict)] if isinstance(spans, list) else [],
    }


def _span(written: Mapping[str, Any]) -> Json:
    span = {**_with_hex_ids(written), "kind": _number(written.get("kind", 0), "SPAN_KIND_", _KINDS)}
    if "attributes" in written:
        span["attributes"] = with_arrays(written["attributes"])
    if isinstance(links := written.get("links"), list):
        span["links"] = [_with_hex_ids(link) for link in links if isinstance(link, dict)]
    if isinstance(status := written.get("status"), dict) and "code" in status:
        span["status"] = {**status, "code": _number(status["code"], "STATUS_CODE_", _CODES)}
    return span


def _with_hex_ids(written: Mapping[str, Any]) -> Json:
    hexed = dict(written)
    for key, size in (("traceId", TRACE_ID_BYTES), ("spanId", SPAN_ID_BYTES), ("parentSpanId", SPAN_ID_BYTES)):
        if isinstance(value := written.get(key), str):
            hexed[key] = _hex(value, size)
    return hexed


def _hex(identifier: str, size: int) -> str:
    """Return an id of `size` bytes in hex, whether it is written so or in base64: the lengths differ."""
    if len(identifier) == 2 * size:
        return identifier.lower()
    try:
        decoded = binascii.a2b_base64(identifier)
    except (binascii.Error, ValueError):
        return identifier
    return decoded.hex() if len(decoded) == size else identifier


def _number(value: object, prefix: str, names: tuple[str, ...]) -> object:
    if not isinstance(value, str):
        return value
    name = value.removeprefix(prefix)
    return names.index(name) if name in names else 0
