"""OTLP JSON lines by hand, for tests: `line(resource(), [span(...), ...])` is what an exporter writes."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from otel_cache.semconv import names

SCOPE = "otel_cache"
_FINGERPRINT = 8


def value(plain: Any) -> dict[str, Any]:
    """Return the OTLP JSON value of a string, number, boolean, bytes or list of them."""
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, bytes):
        return {"bytesValue": base64.b64encode(plain).decode()}
    if isinstance(plain, list | tuple):
        return {"arrayValue": {"values": [value(each) for each in plain]}}
    return {"stringValue": plain}


def attributes(plain: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP JSON; a value of None leaves its attribute out."""
    return [{"key": key, "value": value(each)} for key, each in plain.items() if each is not None]


def resource(replica: str = "r0", instance: str = "r0-life0", **settings: Any) -> dict[str, Any]:
    """Return the resource of one life of a replica."""
    plain = {names.REPLICA_ID: replica, "service.instance.id": instance, **settings}
    return {"attributes": attributes(plain)}


def span(
    name: str,
    plain: Mapping[str, Any],
    *,
    span_id: int,
    trace_id: int = 1,
    parent: int | None = None,
    start: int = 1_000,
    end: int = 2_000,
) -> dict[str, Any]:
    """Return a span; ids are small numbers, times nanoseconds."""
    made = {
        "traceId": f"{trace_id:032x}",
        "spanId": f"{span_id:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": attributes(plain),
    }
    if parent is not None:
        made["parentSpanId"] = f"{parent:016x}"
    return made


def message(owner: Mapping[str, Any], spans: Sequence[Mapping[str, Any]], scope: str = SCOPE) -> dict[str, Any]:
    """Return one `TracesData` message."""
    scope_spans = {"scope": {"name": scope, "version": "0.1.0"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": dict(owner), "scopeSpans": [scope_spans]}]}


def line(owner: Mapping[str, Any], spans: Sequence[Mapping[str, Any]], scope: str = SCOPE) -> bytes:
    """Return one line of a capture."""
    return json.dumps(message(owner, spans, scope), separators=(",", ":")).encode() + b"\n"


def fingerprints(*numbers: int) -> str:
    """Return fingerprints, 8 bytes each, as base64."""
    return base64.b64encode(b"".join(number.to_bytes(_FINGERPRINT) for number in numbers)).decode()


def lookup(span_id: int, sequence: int, *, start: int = 1_000, **changed: Any) -> dict[str, Any]:
    """Return a lookup span of an 11,910-token prompt that missed; `changed` are attributes by constant name."""
    plain = {
        names.REQUEST_ID: "repeat-0",
        names.RECORD_SEQUENCE: sequence,
        names.EVIDENCE_NUMBER: sequence,
        names.LOOKUP_PROMPT_TOKENS: 11910,
        names.LOOKUP_HIT_TOKENS: 0,
        names.LOOKUP_MAX_HIT_TOKENS: 11909,
        names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS: 9600,
        names.LOOKUP_ATTEMPTS: 1,
        names.LOOKUP_ADMITTED: True,
        names.LOOKUP_ADMITTED_TOKENS: 0,
        names.LOOKUP_SKIPPED: False,
        names.FINGERPRINT_FIRST: 1600,
        names.FINGERPRINT_VALUES: [fingerprints(*range(1, 8))],
        names.FINGERPRINT_COMMON: [fingerprints(64, 128)],
        names.FINGERPRINT_PROMPT: fingerprints(99),
        **_named(changed),
    }
    return span(names.LOOKUP, plain, span_id=span_id, start=start)


def group(span_id: int, parent: int, **changed: Any) -> dict[str, Any]:
    """Return the group lookup span of three Mamba groups that had nothing; the sequence stands on the lookup."""
    plain = {
        names.GROUP_IDS: [0, 1, 2],
        names.GROUP_KIND: names.KIND_MAMBA,
        names.GROUP_BLOCK_SIZE: 1600,
        names.GROUP_HIT_TOKENS: 0,
        names.GROUP_PASS_ASKED: [9600],
        names.GROUP_PASS_HIT: [0],
        names.GROUP_PASS_DROPPED: [0],
        names.GROUP_PASS_ALIGNMENT: [1600],
        **_named(changed),
    }
    return span(names.GROUP_LOOKUP, plain, span_id=span_id, parent=parent)


def store(span_id: int, sequence: int, **changed: Any) -> dict[str, Any]:
    """Return a store span: Mamba states at 9,600 refused by the mask, attention blocks stored."""
    plain = {
        names.REQUEST_ID: "cold-0",
        names.RECORD_SEQUENCE: sequence,
        names.EVIDENCE_NUMBER: sequence,
        names.STORE_ORIGIN: names.ORIGIN_PREFILL,
        names.STORE_CHUNK_START: 8000,
        names.STORE_CHUNK_END: 9600,
        names.GROUP_IDS: [0, 3],
        names.STORE_STORED: ["", "1600-9600/1600"],
        names.STORE_MASKED: ["9600", ""],
        names.STORE_NOT_MATERIALIZED: ["1600-6400/1600", ""],
        names.STORE_WANTED: ["11200", ""],
        **_named(changed),
    }
    return span(names.STORE, plain, span_id=span_id)


def evict(span_id: int, sequence: int, **changed: Any) -> dict[str, Any]:
    """Return an evict span: two blocks of group 0 and one of group 3."""
    plain = {
        names.RECORD_SEQUENCE: sequence,
        names.EVIDENCE_NUMBER: sequence,
        names.GROUP_IDS: [0, 3],
        names.EVICT_BLOCKS: [2, 1],
        names.EVICT_POSITIONS: ["1600,3200", "1600"],
        names.EVICT_FINGERPRINTS: [fingerprints(1, 2), fingerprints(1)],
        names.EVICT_KEYS: [f",{fingerprints(7)}", ""],
        names.EVICT_AGE: [500, 400],
        names.EVICT_EVICTOR_REQUEST_ID: "other-0",
        **_named(changed),
    }
    return span(names.EVICT, plain, span_id=span_id)


def step(span_id: int, sequence: int, **changed: Any) -> dict[str, Any]:
    """Return a scheduler step span."""
    plain = {
        names.RECORD_SEQUENCE: sequence,
        names.STEP_INDEX: sequence,
        names.STEP_PREFILL_TOKENS: 1600,
        names.STEP_DECODE_TOKENS: 3,
        names.STEP_RUNNING_REQUESTS: 2,
        names.STEP_WAITING_REQUESTS: 1,
        names.STEP_PREEMPTED_REQUESTS: 0,
        names.STEP_EXECUTE_DURATION: 0.25,
        **_named(changed),
    }
    return span(names.STEP, plain, span_id=span_id)


def _named(changed: Mapping[str, Any]) -> dict[str, Any]:
    return {getattr(names, constant): each for constant, each in changed.items()}
