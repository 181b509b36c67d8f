"""The tables of `docs/signals.md` from the registry; the prose between them stays.

A table stands between `<!-- semconv ID -->` and `<!-- endsemconv -->`: ID is a group's, whose attributes are listed, or
an enumeration's, whose members are.
"""

import re
from collections.abc import Iterator

from scripts.semconv.registry import CONDITIONAL, ROOT, Attribute, Group, Registry, RegistryError

PATH = ROOT / "docs" / "signals.md"
PART = re.compile(r"(<!-- semconv (\S+) -->\n).*?(<!-- endsemconv -->)", flags=re.DOTALL)
INLINE_MEMBERS = 4
"""An enumeration with more members has a table of its own."""


def render(registry: Registry, text: str) -> str:
    """Return the page `text` with its tables as the registry has them.

    Raises:
        RegistryError: the page names an id that the registry has not.

    """
    tables = {group.id: _group_table(group) for group in registry.groups}
    tables |= {each.id: _members_table(each) for each in registry.attributes.values() if each.members}
    tables["metrics"] = _metrics_table(registry)

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise RegistryError(f"{PATH.name}: the registry has no {match[2]}")
        return match[1] + "\n".join(tables[match[2]]) + "\n" + match[3]

    return PART.sub(table, text)


def _group_table(group: Group) -> list[str]:
    # What a group inherits stands in the table of the group that defines it.
    own = [each for each in group.attributes if not each.inherited]
    rows = (f"| `{each.id}` | {each.type} | {each.unit} | {_meaning(each)} |" for each in own)
    return ["| attribute | type | unit | meaning |", "|---|---|---|---|", *rows]


def _meaning(attribute: Attribute) -> str:
    parts = [attribute.brief]
    if 0 < len(attribute.members) <= INLINE_MEMBERS:
        parts.append("One of: " + ", ".join(f"`{member.value}` ({member.brief})" for member in attribute.members) + ".")
    elif attribute.members:
        parts.append("Its values stand in a table of their own.")
    parts.append(attribute.note)
    if attribute.level == CONDITIONAL:
        parts.append(f"Only {attribute.condition}.")
    return " ".join(filter(None, parts)).replace("|", "\\|")


def _members_table(attribute: Attribute) -> list[str]:
    name = attribute.id.rpartition(".")[2]
    rows = (f"| `{each.value}` | {each.brief} |" for each in attribute.members)
    return [f"| `{name}` | meaning |", "|---|---|", *rows]


def _metrics_table(registry: Registry) -> list[str]:
    return ["| metric | instrument | unit | labels | meaning |", "|---|---|---|---|---|", *_metric_rows(registry)]


def _metric_rows(registry: Registry) -> Iterator[str]:
    for group in registry.metrics.values():
        labels = " ".join(f"`{each.id}`" for each in group.attributes)
        meaning = " ".join(filter(None, (group.brief, group.note)))
        yield f"| `{group.name}` | {group.instrument} | {group.unit} | {labels} | {meaning} |"
