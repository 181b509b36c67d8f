"""Reads `otel_cache/semconv/registry/*.yaml`: OpenTelemetry's form of semantic conventions, with our annotations.

Annotations of an attribute: `unit` (UCUM), `constant` (its name in Python where it does not follow from the id; null:
none), `member_constants` (prefix of the constants of an enumeration's members; without it they have none), `open`
(an enumeration that may have other values), `elements` (the enumeration that an array's elements are of).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "otel_cache" / "semconv" / "registry"
ORDER = ("common", "request", "lookup", "fingerprint", "group", "store", "evict", "step", "worker", "resource")
"""Topics in the order of the generated files; further ones follow by name."""

REQUIRED = "required"
RECOMMENDED = "recommended"
CONDITIONAL = "conditionally_required"
LEVELS = (REQUIRED, RECOMMENDED, CONDITIONAL, "opt_in")
TYPES = ("string", "int", "double", "boolean", "string[]", "int[]", "double[]", "boolean[]")
KINDS = ("span", "metric", "entity", "attribute_group")
INSTRUMENTS = ("counter", "updowncounter", "gauge", "histogram")
_NAMESPACES = ("vllm.kv_cache.", "vllm.scheduler.", "vllm.", "otel_cache.", "gen_ai.")


class RegistryError(Exception):
    """The registry says something impossible; the message says where."""


@dataclass(frozen=True)
class Member:
    """A value of an enumeration."""

    id: str
    value: str
    brief: str


@dataclass(frozen=True)
class Attribute:
    """An attribute, as it stands in one group.

    Attributes:
        type: one of `TYPES`; that of an enumeration is that of its values.
        unit: UCUM, empty where it has none.
        level: one of `LEVELS`; `condition` says when it stands there where the level is `CONDITIONAL`.
        constant: its name in Python, None where it has none.
        members: values of an enumeration; `open`: there may be others.
        elements: id of the enumeration that an array's elements are of.
        defined: whether the group defines it; else it refers to where that is.
        inherited: whether it is of a group that this one extends.

    """

    id: str
    type: str
    brief: str
    note: str
    unit: str
    level: str
    condition: str
    constant: str | None
    members: tuple[Member, ...]
    member_constants: str | None
    open: bool
    elements: str | None
    defined: bool
    inherited: bool = False


@dataclass(frozen=True)
class Group:
    """A span, a metric, a resource, or attributes that stand together.

    Attributes:
        name: as it is exported: of a span or metric; empty for others.
        attributes: those of the groups that it extends come last.

    """

    id: str
    kind: str
    name: str
    brief: str
    note: str
    constant: str
    unit: str
    instrument: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True)
class Topic:
    """A file of the registry; `head` is the first paragraph of the comment at its top."""

    name: str
    head: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Registry:
    """All topics, in order."""

    topics: tuple[Topic, ...]

    @property
    def groups(self) -> Iterator[Group]:
        """All groups."""
        return (group for topic in self.topics for group in topic.groups)

    @property
    def spans(self) -> dict[str, Group]:
        """The spans by name."""
        return {group.name: group for group in self.groups if group.kind == "span"}

    @property
    def metrics(self) -> dict[str, Group]:
        """The metrics by name; the attributes of one are its labels."""
        return {group.name: group for group in self.groups if group.kind == "metric"}

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Every attribute by id, as it is defined."""
        return {each.id: each for group in self.groups for each in group.attributes if each.defined}

    def group(self, name: str) -> Group:
        """Return a group by its id."""
        return next(group for group in self.groups if group.id == name)


def constant_name(name: str) -> str:
    """Return the constant's name that follows from an exported name: its namespace goes."""
    for namespace in _NAMESPACES:
        if name.startswith(namespace):
            name = name.removeprefix(namespace)
            break
    return name.replace(".", "_").upper()


def load(folder: Path = FOLDER) -> Registry:
    """Read the registry.

    Raises:
        RegistryError: a file is not of the form, a name stands twice, or a reference leads nowhere.

    """
    files = sorted(
        folder.glob("*.yaml"),
        key=lambda path: (ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), path.stem),
    )
    raw = {path.stem: _read(path) for path in files}
    groups = {group["id"]: group for data in raw.values() for group in data}
    defined: dict[str, dict[str, Any]] = {}
    for group in groups.values():
        for entry in group.get("attributes", ()):
            if "id" in entry:
                if entry["id"] in defined:
                    raise RegistryError(f"{group['id']}: the attribute {entry['id']} is defined twice")
                defined[entry["id"]] = entry
    topics = tuple(
        Topic(path.stem, _head(path), tuple(_group(group, groups, defined) for group in raw[path.stem]))
        for path in files
    )
    registry = Registry(topics)
    _check_constants(registry)
    return registry


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return list(data["groups"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise RegistryError(f"{path.name} is not a list of `groups`: {error}") from error


def _head(path: Path) -> str:
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        lines.append(line[2:].strip())
    return " ".join(lines)


def _group(
    raw: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], defined: Mapping[str, Mapping[str, Any]]
) -> Group:
    where, kind = raw["id"], raw.get("type")
    if kind not in KINDS:
        raise RegistryError(f"{where}: type {kind!r} is none of {', '.join(KINDS)}")
    name = {"span": where.removeprefix("span."), "metric": raw.get("metric_name", "")}.get(kind, "")
    if kind == "metric" and (raw.get("instrument") not in INSTRUMENTS or not name or "unit" not in raw):
        raise RegistryError(f"{where}: a metric needs metric_name, unit, and an instrument: {', '.join(INSTRUMENTS)}")
    return Group(
        id=where,
        kind=kind,
        name=name,
        brief=raw.get("brief", ""),
        note=raw.get("note", ""),
        constant=raw.get("annotations", {}).get("constant") or constant_name(name),
        unit=raw.get("unit", ""),
        instrument=raw.get("instrument", ""),
        attributes=tuple(_attributes(raw, groups, defined)),
    )


def _attributes(
    raw: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], defined: Mapping[str, Mapping[str, Any]]
) -> Iterator[Attribute]:
    for entry in raw.get("attributes", ()):
        name = entry.get("id") or entry.get("ref")
        if name not in defined:
            raise RegistryError(f"{raw['id']}: no attribute {name} is defined")
        yield _attribute(raw["id"], {**defined[name], **entry}, "id" in entry)
    if base := raw.get("extends"):
        if base not in groups:
            raise RegistryError(f"{raw['id']} extends {base}, which does not exist")
        own = {entry.get("id") or entry.get("ref") for entry in raw.get("attributes", ())}
        for inherited in _attributes(groups[base], groups, defined):
            if inherited.id not in own:
                yield replace(inherited, defined=False, inherited=True)


def _attribute(where: str, raw: Mapping[str, Any], is_defined: bool) -> Attribute:
    name, kind, level = raw["id"], raw.get("type"), raw.get("requirement_level", RECOMMENDED)
    condition = ""
    if isinstance(level, dict):
        ((level, condition),) = level.items()
    members: Sequence[Mapping[str, Any]] = ()
    if isinstance(kind, dict):
        members, kind = kind["members"], "string"
    if kind not in TYPES or level not in LEVELS or not raw.get("brief"):
        raise RegistryError(f"{where}: {name} needs a brief, a type ({', '.join(TYPES)}) and a level")
    notes = raw.get("annotations", {})
    return Attribute(
        id=name,
        type=kind,
        brief=raw["brief"],
        note=raw.get("note", ""),
        unit=notes.get("unit", ""),
        level=level,
        condition=condition,
        constant=notes["constant"] if "constant" in notes else constant_name(name),
        members=tuple(Member(each["id"], each["value"], each.get("brief", each["id"])) for each in members),
        member_constants=notes.get("member_constants"),
        open=bool(notes.get("open")),
        elements=notes.get("elements"),
        defined=is_defined,
    )


def _check_constants(registry: Registry) -> None:
    seen: dict[str, str] = {}
    for constant, value in constants(registry):
        if constant in seen:
            raise RegistryError(f"{value} and {seen[constant]} are both {constant}: name one in `annotations`")
        seen[constant] = value


def constants(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield every constant with its value."""
    for group in registry.groups:
        if group.name:
            yield group.constant, group.name
    for attribute in registry.attributes.values():
        if attribute.constant:
            yield attribute.constant, attribute.id
        if attribute.member_constants:
            for member in attribute.members:
                yield member_constant(attribute, member), member.value


def member_constant(attribute: Attribute, member: Member) -> str:
    """Return the name of a member's constant."""
    return f"{attribute.member_constants}_{member.id.upper()}"
