"""What is emitted, against the registry of names: names, types, enumerations, what must be there and what may."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from otel_cache.package import SCOPE
from otel_cache.semconv import names
from scripts.semconv.registry import RECOMMENDED, REQUIRED, Attribute, Registry

TYPES = {"stringValue": "string", "boolValue": "boolean", "intValue": "int", "doubleValue": "double"}
INTERNAL = 1
REPLICA, WORKER = "entity.vllm.replica", "entity.vllm.worker"
LINKS = "link.{}"


def problems(line: Mapping[str, Any], registry: Registry) -> Iterator[str]:
    """Yield what an OTLP JSON line has that the registry does not allow, or lacks that it asks for."""
    for resource in line["resourceSpans"]:
        attributes = resource["resource"]["attributes"]
        entity = WORKER if any(each["key"] == names.WORKER_RANK for each in attributes) else REPLICA
        yield from wrong("resource", attributes, registry.group(entity).attributes, registry)
        for scope in resource["scopeSpans"]:
            if scope["scope"]["name"] != SCOPE:
                yield f"the scope is {scope['scope']['name']}"
            for span in scope["spans"]:
                yield from _wrong_span(span, registry)


def _wrong_span(span: Mapping[str, Any], registry: Registry) -> Iterator[str]:
    name = span["name"]
    if name not in registry.spans:
        yield f"there is no span {name}"
        return
    if span["kind"] != INTERNAL:
        yield f"{name} is of kind {span['kind']}"
    yield from wrong(name, span["attributes"], registry.spans[name].attributes, registry)
    links = next((group for group in registry.groups if group.id == LINKS.format(name)), None)
    for link in span.get("links", ()):
        yield from wrong(f"a link of {name}", link.get("attributes", ()), links.attributes if links else (), registry)


def wrong(
    where: str, emitted: Collection[Mapping[str, Any]], known: Collection[Attribute], registry: Registry
) -> Iterator[str]:
    """Yield what is wrong with OTLP attributes of one span, link or resource."""
    allowed = {attribute.id: attribute for attribute in known}
    values = {each["key"]: each["value"] for each in emitted}
    if len(values) != len(emitted):
        yield f"{where} has an attribute twice"
    for name, value in values.items():
        if name not in allowed:
            yield f"{where} has {name}, which the registry does not allow there"
        else:
            yield from (f"{where}: {name} {text}" for text in _wrong_value(value, allowed[name], registry))
    # What depends on a condition may be absent, and what is there by choice.
    needed = {name for name, attribute in allowed.items() if attribute.level in (REQUIRED, RECOMMENDED)}
    yield from (f"{where} has no {name}" for name in sorted(needed - set(values)))


def _wrong_value(value: Mapping[str, Any], attribute: Attribute, registry: Registry) -> Iterator[str]:
    ((kind, content),) = value.items()
    array = kind == "arrayValue"
    elements = content.get("values", ()) if array else (value,)
    types = {TYPES[next(iter(element))] for element in elements}
    expected = attribute.type.removesuffix("[]")
    if array != attribute.type.endswith("[]") or not types <= {expected}:
        yield f"is {'/'.join(sorted(types))}{'[]' if array else ''}, not {attribute.type}"
        return
    enumeration = registry.attributes[attribute.elements] if attribute.elements else attribute
    if enumeration.members and not enumeration.open:
        said = {str(next(iter(element.values()))) for element in elements}
        yield from (f"is {text!r}" for text in sorted(said - {member.value for member in enumeration.members}))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of an OTLP JSON file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def seen(path: Path) -> dict[str, set[str]]:
    """Return the attributes that occur in a file, by the name of their span; under "" those of resources."""
    found: dict[str, set[str]] = {}
    for line in read_lines(path):
        for resource in line["resourceSpans"]:
            found.setdefault("", set()).update(each["key"] for each in resource["resource"]["attributes"])
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                found.setdefault(span["name"], set()).update(each["key"] for each in span["attributes"])
    return found


def assert_conforms(path: Path, registry: Registry) -> None:
    """Fail with everything that is wrong in a file."""
    found = sorted({text for line in read_lines(path) for text in problems(line, registry)})
    assert not found, "\n".join(found)
