"""docs/signals.md against the registry of names and against real spans."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from docs.markdown import named, read, sections, table
from otel_cache.records import Evict
from otel_cache.semconv import names
from otel_cache.sidecar.evidence import GatheredEvicts, reset_attributes

TEXT = read("docs/signals.md")
SECTIONS = sections(TEXT)
SPANS = (names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.EVICT, names.STEP)
NAMESPACE = r"(?:vllm|otel_cache)\.[a-z0-9_.]+"
KINDS = {"stringValue": "string", "boolValue": "boolean", "intValue": "int", "doubleValue": "double"}
TYPES = {str: "string", bool: "boolean", int: "int", float: "double"}


def constants() -> set[str]:
    """Return the values of all constants of the registry."""
    return {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}


def documented(section: str) -> dict[str, str]:
    """Return the attributes in a section's tables with their types."""
    found = table(SECTIONS[section]).items()
    return {name: row[0] for name, row in found if re.fullmatch(r"[a-z_]+\.[a-z0-9_.]+", name)}


def allowed(span: str) -> dict[str, str]:
    """Return the attributes that a span may have, with their types."""
    return documented(f"`{span}`") | documented("On evidence spans")


def test_every_name_is_documented() -> None:
    """Each span, attribute and value of the registry stands in the page, in backticks."""
    missing = sorted(value for value in constants() if f"`{value}`" not in TEXT)
    assert not missing, f"docs/signals.md lacks {', '.join(missing)}"


def test_nothing_else_is_documented() -> None:
    """No name of our namespaces in the page is unknown to the registry."""
    unknown = sorted(named(TEXT, NAMESPACE) - constants() - {"otel_cache.semconv.names"})
    assert not unknown, f"docs/signals.md names {', '.join(unknown)}"


def test_spans_have_sections() -> None:
    """One section per span, and each attribute of the registry in a table."""
    assert [heading.strip("`") for heading in SECTIONS if heading.startswith("`")] == list(SPANS)
    tables = {name for section in SECTIONS for name in documented(section)}
    attributes = {value for value in constants() if re.fullmatch(NAMESPACE, value)} - set(SPANS)
    assert attributes - tables == set()


def spans() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the resource (under "") and the spans of the capture that ships: name, and type by attribute."""
    text = (files("analyzers") / "examples" / "model_case.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            yield "", types(resource["resource"]["attributes"])
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                yield span["name"], types(span["attributes"])


def types(attributes: list[dict[str, Any]]) -> dict[str, str]:
    """Return the types of OTLP attributes by name; "[]" of an empty array, whose type does not show."""
    found = {}
    for attribute in attributes:
        ((kind, value),) = attribute["value"].items()
        if kind == "arrayValue":
            elements = {KINDS[next(iter(element))] for element in value.get("values", ())}
            found[attribute["key"]] = "".join(elements) + "[]"
        else:
            found[attribute["key"]] = KINDS[kind]
    return found


def test_the_shipped_capture_is_as_documented() -> None:
    """Each span of it has attributes of its section only, of the types given there."""
    seen = set()
    for name, attributes in spans():
        expected = allowed(name) if name else documented("Resource")
        for attribute, kind in attributes.items():
            assert attribute in expected, f"{name or 'resource'} has {attribute}"
            assert kind in (expected[attribute], "[]"), f"{name or 'resource'}: {attribute} is {kind}"
        seen.add(name)
    assert seen >= {"", names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.STEP}


@pytest.mark.parametrize("reason", ["allocation", "replaced", "reset"])
def test_evictions_are_as_documented(reason: str) -> None:
    """The capture that ships has none, so the sidecar's own builder is asked."""
    record = Evict(7, 0, 10**9, 1, [1600, 3200], bytes(16), [b"", b"12345678"], [5, 6], [3, 4], reason)
    built = [reset_attributes()] if reason == "reset" else GatheredEvicts(record).attributes({3: "a"}).values()
    expected = allowed(names.EVICT)
    for attributes in built:
        for name, value in attributes.items():
            if isinstance(value, list):
                assert {TYPES[type(element)] + "[]" for element in value} <= {expected[name]}
            else:
                assert TYPES[type(value)] == expected[name]
