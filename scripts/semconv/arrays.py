"""`otel_cache/semconv/arrays.py` from the registry."""

from scripts.semconv.registry import ROOT, Registry

PATH = ROOT / "otel_cache" / "semconv" / "arrays.py"
HEAD = '''"""Which attributes are arrays: a back end that knows scalars alone keeps an array as a string of its JSON.

Generated from `otel_cache/semconv/registry/*.yaml` by `make semconv`: edit those, not this.
"""

'''


def render(registry: Registry) -> str:
    """Return the text of the module."""
    found = {each.id for group in registry.groups for each in group.attributes if each.type.endswith("[]")}
    lines = "".join(f'        "{name}",\n' for name in sorted(found))
    return f"{HEAD}ARRAYS = frozenset(\n    [\n{lines}    ]\n)\n"
