"""`otel_cache/semconv/names.py` from the registry."""

import textwrap
from collections.abc import Iterator

from scripts.semconv.registry import ROOT, Attribute, Group, Registry, member_constant

PATH = ROOT / "otel_cache" / "semconv" / "names.py"
WIDTH = 120
HEAD = '''"""Span names, attribute names and enumerations. Everything that is emitted or read takes its name from here.

Generated from `otel_cache/semconv/registry/*.yaml` by `make semconv`: edit those, not this.
"""
'''


def render(registry: Registry) -> str:
    """Return the text of the module."""
    lines = [HEAD]
    for heading, kind in (("Spans", "span"), ("Metrics", "metric")):
        if groups := [group for group in registry.groups if group.kind == kind]:
            lines.append(f"# {heading}")
            for group in groups:
                lines += _named(group)
            lines.append("")
    for topic in registry.topics:
        attributes = [each for group in topic.groups for each in group.attributes if each.defined and each.constant]
        if attributes:
            lines += [f"# {line}" for line in textwrap.wrap(topic.head, WIDTH - 2)]
            for attribute in attributes:
                lines += _attribute(attribute)
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _named(group: Group) -> Iterator[str]:
    yield f'{group.constant} = "{group.name}"'
    if group.kind == "metric":
        yield from _docstring(f"{group.brief} {group.instrument}, {group.unit}")


def _attribute(attribute: Attribute) -> Iterator[str]:
    yield f'{attribute.constant} = "{attribute.id}"'
    kind = ", ".join(filter(None, (attribute.type, attribute.unit)))
    absent = f"Only {attribute.condition}." if attribute.condition else ""
    yield from _docstring(" ".join(filter(None, (attribute.brief, attribute.note, absent, kind))))
    if attribute.member_constants:
        yield from (f'{member_constant(attribute, member)} = "{member.value}"' for member in attribute.members)


def _docstring(text: str) -> Iterator[str]:
    if len(text) + 6 <= WIDTH:
        yield f'"""{text}"""'
    else:
        first, *others = textwrap.wrap(text, WIDTH - 3, break_on_hyphens=False)
        yield f'"""{first}'
        yield from others
        yield '"""'
