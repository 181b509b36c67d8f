"""Unknown and missing keys, told by their place and with the key that was probably meant."""

import difflib
from typing import Any, get_args

import msgspec

from otel_cache.errors import ScenarioError


def check_keys(data: Any, kind: type[msgspec.Struct], source: str, place: str = "") -> None:
    """Check the keys of `data`, and of what it holds, against the fields of `kind`.

    Values of a wrong type are passed over: `msgspec.convert` reports them.

    Raises:
        ScenarioError: a key that `kind` does not have, or lacks one that it needs.

    """
    if not isinstance(data, dict):
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(fields)}"
            raise ScenarioError(f"{source}: {_join(place, str(key))}: unknown key; {hint}")
    for name, field in fields.items():
        if name not in data:
            if field.required:
                raise ScenarioError(f"{source}: {_join(place, name)}: missing; this key has no default")
            continue
        value = data[name]
        inner = _struct_in(field.type)
        if inner is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_keys(item, inner, source, f"{_join(place, name)}[{index}]")
        else:
            check_keys(value, inner, source, _join(place, name))


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field's type holds: itself, or inside a tuple, a union or an annotation."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    for argument in get_args(kind):
        found = _struct_in(argument)
        if found is not None:
            return found
    return None
