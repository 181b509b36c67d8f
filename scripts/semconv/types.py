"""`otel_cache/semconv/types.py` from the registry."""

from scripts.semconv.registry import ROOT, Registry

PATH = ROOT / "otel_cache" / "semconv" / "types.py"
HEAD = '''"""The types of the attributes that spans have, by name.

Generated from `otel_cache/semconv/registry/*.yaml` by `make semconv`: edit those, not this.
"""

'''


def render(registry: Registry) -> str:
    """Return the text of the module."""
    groups = [group for group in registry.groups if group.kind == "span" or group.id.startswith("common.")]
    found = {each.id: each.type for group in groups for each in group.attributes}
    lines = "".join(f'    "{name}": "{found[name]}",\n' for name in sorted(found))
    return f"{HEAD}SPAN_TYPES = {{\n{lines}}}\n"
