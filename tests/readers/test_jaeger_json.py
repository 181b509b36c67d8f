"""Jaeger's own JSON and other forms of OTLP JSON give the capture that the file gives."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from analyzers.model import Capture
from analyzers.readers import jaeger_json, open_capture, otlp_dialects
from otel_cache.semconv import names
from otel_cache.semconv.arrays import ARRAYS
from readers import otlp

EXAMPLE = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"
TYPES = {"stringValue": "string", "boolValue": "bool", "intValue": "int64", "doubleValue": "float64"}
TIMES = ("start", "end")


def tag(attribute: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attribute as Jaeger keeps it: an array is a string of its JSON."""
    ((kind, value),) = attribute["value"].items()
    if kind == "arrayValue":
        plain = [next(iter(each.values())) for each in value.get("values", ())]
        ints = [
            int(each) if "intValue" in of else each for each, of in zip(plain, value.get("values", ()), strict=True)
        ]
        return {"key": attribute["key"], "type": "string", "value": json.dumps(ints, separators=(",", ":"))}
    return {"key": attribute["key"], "type": TYPES[kind], "value": int(value) if kind == "intValue" else value}


def jaeger(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OTLP message as one trace of Jaeger's, by the rules of Jaeger's translator."""
    spans, processes = [], {}
    for number, resource in enumerate(message["resourceSpans"]):
        tags = [tag(each) for each in resource["resource"]["attributes"]]
        service = next((each["value"] for each in tags if each["key"] == "service.name"), "OTLPResourceNoServiceName")
        tags = [each for each in tags if each["key"] != "service.name"]
        processes[f"p{number}"] = {"serviceName": service, "tags": tags}
        for scope in resource["scopeSpans"]:
            scope_tags = [
                {"key": "otel.scope.name", "type": "string", "value": scope["scope"]["name"]},
                {"key": "otel.scope.version", "type": "string", "value": scope["scope"]["version"]},
                {"key": "span.kind", "type": "string", "value": "internal"},
            ]
            for span in scope["spans"]:
                start, end = int(span["startTimeUnixNano"]) // 1000, int(span["endTimeUnixNano"]) // 1000
                references = [
                    {"refType": "FOLLOWS_FROM", "traceID": link["traceId"], "spanID": link["spanId"]}
                    for link in span.get("links", ())
                ]
                if "parentSpanId" in span:
                    parent = {"refType": "CHILD_OF", "traceID": span["traceId"], "spanID": span["parentSpanId"]}
                    references.insert(0, parent)
                spans.append(
                    {
                        "traceID": span["traceId"],
                        "spanID": span["spanId"],
                        "operationName": span["name"],
                        "references": references,
                        "startTime": start,
                        "duration": end - start,
                        "tags": [*map(tag, span["attributes"]), *scope_tags],
                        "logs": [],
                        "processID": f"p{number}",
                        "warnings": None,
                    }
                )
    return {"traceID": spans[0]["traceID"], "spans": spans, "processes": processes, "warnings": None}


def read(folder: Path, *messages: Mapping[str, Any] | None) -> Capture:
    """Return the capture that these messages are."""
    path = folder / "capture.jsonl"
    path.write_text("".join(f"{json.dumps(message)}\n" for message in messages))
    return open_capture([path])


def frames(capture: Capture) -> dict[str, pl.DataFrame]:
    """Return the frames of a capture, times to the microsecond."""
    found = {name: value for name, value in vars(capture).items() if isinstance(value, pl.DataFrame)}
    return {
        name: frame.with_columns((pl.col(each) // 1000) for each in TIMES if each in frame.columns)
        for name, frame in found.items()
    }


def messages() -> list[dict[str, Any]]:
    """Return the messages of the capture that ships."""
    return [json.loads(line) for line in EXAMPLE.read_text().splitlines()]


def same(one: Capture, other: Capture) -> None:
    """Check that two captures hold the same spans and settings."""
    assert one.spans == other.spans > 0
    assert other.skipped_lines == 0
    assert one.lives == other.lives
    for frame, mine in zip(frames(one).values(), frames(other).values(), strict=True):
        assert_frame_equal(frame, mine)


def test_what_jaeger_keeps_is_the_capture(tmp_path: Path) -> None:
    """All attributes, arrays among them, parents and resources come back; times to the microsecond."""
    converted = [jaeger_json.to_otlp(jaeger(message)) for message in messages()]
    same(open_capture([EXAMPLE]), read(tmp_path, *converted))


def test_a_string_that_looks_like_an_array_stays_one(tmp_path: Path) -> None:
    """A request id may be any text; only what the registry calls an array is one."""
    message = otlp.message(otlp.resource(), [otlp.lookup(1, 0, REQUEST_ID="[1, 2]")])
    capture = read(tmp_path, jaeger_json.to_otlp(jaeger(message)))
    assert capture.lookups["request_id"].to_list() == ["[1, 2]"]
    assert names.REQUEST_ID not in ARRAYS >= {names.GROUP_IDS, names.STORE_STORED}


def test_old_forms_of_jaegers_json(tmp_path: Path) -> None:
    """Ids without leading zeros, the scope under its older name, the process and the parent on the span itself."""
    message = otlp.message(otlp.resource(**{"service.name": "vllm"}), [otlp.lookup(1, 0), otlp.group(2, 1)])
    trace = jaeger(message)
    for span in trace["spans"]:
        span["traceID"], span["spanID"] = span["traceID"].lstrip("0"), span["spanID"].lstrip("0")
        span["process"] = trace["processes"][span.pop("processID")]
        for each in span["tags"]:
            each["key"] = each["key"].replace("otel.scope.", "otel.library.")
        if references := span.pop("references"):
            span["parentSpanID"] = references[0]["spanID"].lstrip("0")
    del trace["processes"]
    same(read(tmp_path, message), read(tmp_path, jaeger_json.to_otlp(trace)))


def test_links_and_parents_are_told_apart() -> None:
    """The parent is the reference to the own trace; the others are links."""
    span = {
        "traceID": "a" * 32,
        "spanID": "1" * 16,
        "operationName": names.LOOKUP,
        "startTime": 5,
        "duration": 2,
        "tags": [{"key": "w3c.tracestate", "type": "string", "value": "a=b"}],
        "references": [
            {"refType": "FOLLOWS_FROM", "traceID": "b" * 32, "spanID": "2" * 16},
            {"refType": "FOLLOWS_FROM", "traceID": "a" * 32, "spanID": "3" * 16},
            {"refType": "CHILD_OF", "traceID": "a" * 32, "spanID": "4" * 16},
        ],
    }
    (resource,) = jaeger_json.to_otlp({"traceID": "a" * 32, "spans": [span]})["resourceSpans"]
    (made,) = resource["scopeSpans"][0]["spans"]
    assert made["parentSpanId"] == "4" * 16
    assert [link["spanId"] for link in made["links"]] == ["2" * 16, "3" * 16]
    assert (made["startTimeUnixNano"], made["endTimeUnixNano"], made["traceState"]) == ("5000", "7000", "a=b")


@pytest.mark.parametrize(
    "damage",
    [
        {"traceID": None},
        {"spanID": 5},
        {"startTime": "soon"},
        {"tags": [{"key": names.REQUEST_ID}, 7]},
        {"tags": {}},
        {"processID": "p9"},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_damage_costs_one_span(damage: dict[str, Any], tmp_path: Path) -> None:
    """A damaged span is none that can be used, or none of ours; the others are read."""
    message = otlp.message(otlp.resource(), [otlp.lookup(number, number) for number in (1, 2, 3)])
    trace = jaeger(message)
    trace["spans"][1] |= damage
    capture = read(tmp_path, jaeger_json.to_otlp(trace))
    assert (capture.spans, capture.skipped_lines + capture.foreign_spans) == (2, 1)


def based(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in Protobuf's general JSON: ids in base64, enumerations by name."""
    changed = json.loads(json.dumps(message))
    for resource in changed["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span["kind"] = "SPAN_KIND_INTERNAL"
                span["status"] = {"code": "STATUS_CODE_OK"}
                for each in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in each:
                            each[key] = base64.b64encode(bytes.fromhex(each[key])).decode()
    return dict(changed)


def scalars(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as a storage of Jaeger's model gives it: arrays are strings of their JSON."""
    changed = json.loads(json.dumps(message))
    for resource in changed["resourceSpans"]:
        owners = [resource["resource"], *(span for scope in resource["scopeSpans"] for span in scope["spans"])]
        for owner in owners:
            for attribute in owner["attributes"]:
                if "arrayValue" in attribute["value"]:
                    attribute["value"] = {"stringValue": tag(attribute)["value"]}
    return dict(changed)


def old(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as it was written before OTLP 0.15."""
    return {
        "resourceSpans": [
            {
                "resource": resource["resource"],
                "instrumentationLibrarySpans": [
                    {"instrumentationLibrary": scope["scope"], "spans": scope["spans"]}
                    for scope in resource["scopeSpans"]
                ],
            }
            for resource in message["resourceSpans"]
        ]
    }


FORMS = {
    "Jaeger's api/v3": lambda message: {"result": message},
    "Jaeger's api/v3 before a storage of Jaeger's model": lambda message: {"result": scalars(message)},
    "Jaeger's older gateway": lambda message: {"result": based(message)},
    "Tempo's api/traces": lambda message: {"batches": based(message)["resourceSpans"]},
    "Tempo's api/v2/traces": lambda message: {"trace": based(message), "metrics": {"inspectedBytes": "1"}},
    "before scopes": old,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_otlp(form: str, tmp_path: Path) -> None:
    """All of them are the same spans."""
    written = [otlp_dialects.to_otlp(FORMS[form](message)) for message in messages()]
    same(open_capture([EXAMPLE]), read(tmp_path, *written))


@pytest.mark.parametrize("answer", [{"data": []}, {"resourceSpans": 5}, {"result": {"spans": []}}])
def test_what_is_no_otlp_is_none(answer: dict[str, Any]) -> None:
    """It has no list of resources."""
    assert otlp_dialects.to_otlp(answer) is None


def test_a_trace_without_spans_is_one() -> None:
    """Protobuf's JSON leaves empty lists out."""
    assert otlp_dialects.to_otlp({}) == otlp_dialects.to_otlp({"result": {}}) == {"resourceSpans": []}


def test_kinds_become_numbers() -> None:
    """Whatever the form, the result is that of a file."""
    written = otlp_dialects.to_otlp(FORMS["Tempo's api/traces"](messages()[0]))
    assert written is not None
    for scope, span in otlp_dialects.spans_of(written):
        assert (scope, span["kind"], span["status"]["code"], len(span["traceId"])) == (otlp.SCOPE, 1, 1, 32)
