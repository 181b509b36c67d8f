"""Runs a scenario under the instrumentation, and holds its spans and what vLLM's scheduler was seen to do."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.run import LabWorker
from otel_cache.semconv import names
from otel_cache.semconv.positions import parse_positions


@dataclass(frozen=True)
class Span:
    """A span as it stands in the file; times in ns since the epoch, ids in hex, a root's parent is ""."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, dict[str, Any]], ...]
    """Span ids, and the links' attributes."""
    resource: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def get(self, name: str) -> Any:
        """Return an attribute, None where it is absent."""
        return self.attributes.get(name)


@dataclass(frozen=True)
class Run:
    """The spans of a run, in the order of the file, and what the lab saw of vLLM."""

    spans: Sequence[Span]
    said: LabResult

    def named(self, name: str, request: str | None = None) -> list[Span]:
        """Return the spans of this name, those of one request if it is given."""
        return [
            span
            for span in self.spans
            if span.name == name and (request is None or span.get(names.REQUEST_ID) == request)
        ]

    def one(self, name: str, request: str | None = None) -> Span:
        """Return the only span of this name."""
        (span,) = self.named(name, request)
        return span

    def by_id(self, identifier: str) -> Span:
        """Return the span with this id."""
        (span,) = [span for span in self.spans if span.id == identifier]
        return span

    def children(self, parent: Span, name: str) -> list[Span]:
        """Return the spans of this name below `parent`."""
        return [span for span in self.named(name) if span.parent == parent.id]

    def stored(self, key: str = names.STORE_STORED) -> Counter[int]:
        """Count the positions of all store spans, by group."""
        found: Counter[int] = Counter()
        for span in self.named(names.STORE):
            for group, text in zip(span[names.GROUP_IDS], span[key], strict=True):
                found[group] += len(positions(text))
        return +found

    def evicted(self) -> Counter[int]:
        """Count the keys of all evict spans, by group."""
        found: Counter[int] = Counter()
        for span in self.named(names.EVICT):
            for group, count in zip(span[names.GROUP_IDS], span[names.EVICT_BLOCKS], strict=True):
                found[group] += count
        return +found


def traced(worker: LabWorker, scenario: Mapping[str, Any], out: Path) -> Run:
    """Run `scenario` and read its spans; nothing may be missing of them."""
    said = worker.run(scenario, out)
    run = Run(read(out), said)
    assert not any(names.MISSING_RECORDS in span.attributes for span in run.spans)
    return run


def read(path: Path) -> list[Span]:
    """Return the spans of a file of OTLP JSON lines."""
    return [
        Span(
            name=span["name"],
            trace=span["traceId"],
            id=span["spanId"],
            parent=span.get("parentSpanId", ""),
            start=int(span["startTimeUnixNano"]),
            end=int(span["endTimeUnixNano"]),
            attributes=_attributes(span),
            links=tuple((link["spanId"], _attributes(link)) for link in span.get("links", ())),
            resource=_attributes(resource["resource"]),
        )
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "doubleValue":
            return float(content)
        case "arrayValue":
            return [_value(each) for each in content.get("values", ())]
    return content


def positions(text: str) -> list[int]:
    """Return the positions that a text like `16-64/16,80` names."""
    return [position for run in parse_positions(text) for position in run]
