"""The parts of the collector's configurations that make metrics of spans, from `collector/metrics.yaml`.

What stands in `dev.yaml` and `gateway.yaml` between `# >>> connector` and `# <<< connector` is the connector that sums
spans; between `# >>> labels` and `# <<< labels` are the statements that copy attributes of the resource to labels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scripts.semconv.registry import ROOT, Registry, RegistryError

METRICS = ROOT / "collector" / "metrics.yaml"
CONFIGS = (ROOT / "collector" / "dev.yaml", ROOT / "collector" / "gateway.yaml")
PART = re.compile(
    r"(?P<begin>^(?P<indent> *)# >>> (?P<name>\w+)\n)(.*?)(?P<end>^ *# <<< (?P=name)\n)", re.DOTALL | re.MULTILINE
)


class _Plain(yaml.SafeDumper):
    """Writes a value out wherever it stands, and each on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(registry: Registry, text: str) -> str:
    """Return the configuration `text` with its generated parts anew.

    Raises:
        RegistryError: a metric is not in the registry, or says how it is made in no way that is known.

    """
    made = yaml.safe_load(METRICS.read_text(encoding="utf-8"))
    parts = {
        "connector": {"signal_to_metrics": {"error_mode": "ignore", "spans": list(_spans(registry, made))}},
        "labels": [f'set(datapoint.attributes["{key}"], resource.attributes["{key}"])' for key in made["resource"]],
    }

    def part(match: re.Match[str]) -> str:
        dumped = yaml.dump(parts[match["name"]], Dumper=_Plain, sort_keys=False, width=1000)
        lines = (match["indent"] + line for line in dumped.splitlines())
        return match["begin"] + "\n".join(lines) + "\n" + match["end"]

    return PART.sub(part, text)


def render_all(registry: Registry) -> dict[Path, str]:
    """Return the text of each configuration."""
    return {path: render(registry, path.read_text(encoding="utf-8")) for path in CONFIGS}


def _spans(registry: Registry, made: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    known = {group.name: group for group in registry.groups if group.kind == "metric"}
    resource = [{"key": key} for key in made["resource"]]
    for name, how in made["metrics"].items():
        if name not in known:
            raise RegistryError(f"{METRICS.name}: the registry has no metric {name}")
        head = {"name": name, "description": known[name].brief, "unit": known[name].unit}
        for conditions, labels, value in _entries(name, how):
            entry: dict[str, Any] = {**head, "include_resource_attributes": resource, "conditions": conditions}
            if labels:
                entry["attributes"] = [{"key": key, "default_value": absent} for key, absent in labels.items()]
            yield {**entry, **value}


def _entries(name: str, how: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, str], dict[str, Any]]]:
    """Yield conditions, labels and value of each entry of the connector that a metric takes: they are added up."""
    conditions = list(_conditions(how))
    labels = how.get("labels", {})
    if "by" in how:
        (label,) = labels
        for value, attribute in how["by"].items():
            only = [f"{condition} and {_attribute(attribute)} != nil" for condition in conditions]
            yield only, {label: value}, _sum(_attribute(attribute))
    elif "count" in how:
        yield conditions, labels, _sum("1")
    elif "add" in how:
        yield conditions, labels, _sum(_difference(how["add"], how.get("subtract", ())))
    elif "last" in how:
        yield conditions, labels, {"gauge": {"value": _attribute(how["last"])}}
    elif "duration" in how:
        yield conditions, labels, _histogram("Seconds(span.end_time - span.start_time)", how["duration"])
    elif "delay" in how:
        yield conditions, labels, _histogram("Seconds(Now() - span.end_time)", how["delay"])
    else:
        raise RegistryError(f"{METRICS.name}: {name} says in no way that is known how it is made")


def _conditions(how: Mapping[str, Any]) -> Iterator[str]:
    where = [f"{_attribute(key)} == {str(value).lower()}" for key, value in how.get("where", {}).items()]
    for span in how["spans"]:
        yield " and ".join([f'span.name == "{span}"', *where])


def _attribute(name: str) -> str:
    return f'span.attributes["{name}"]'


def _difference(add: Sequence[str], subtract: Sequence[str]) -> str:
    def number(name: str) -> str:
        return f"Int(Coalesce([{_attribute(name)}, 0]))"

    return " - ".join([" + ".join(map(number, add)), *map(number, subtract)])


def _sum(value: str) -> dict[str, Any]:
    return {"sum": {"value": value, "monotonic": True}}


def _histogram(value: str, buckets: Sequence[float]) -> dict[str, Any]:
    return {"histogram": {"value": value, "buckets": list(buckets)}}
