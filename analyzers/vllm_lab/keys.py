"""Unknown and missing keys, and values that are none: told by their place, with what was probably meant."""

import difflib
import re
from typing import Any, Literal, get_args, get_origin

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


def wrong_value(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Say which value of a `kind` is wrong, by its place, and which there are if it is one of several words."""
    problem, _, path = str(error).partition(" - at ")
    place = path.strip("`").removeprefix("$").removeprefix(".")
    if unknown := re.match("Invalid enum value '(.*)'$", problem, re.DOTALL):
        words, others = _values_at(place, kind)
        near = difflib.get_close_matches(unknown[1], words, n=1, cutoff=0.5)
        known = f"; there are {', '.join([*words, *others])}" if words else ""
        problem = f"unknown value {unknown[1]!r}{known}" + (f". Did you mean {near[0]}?" if near else "")
    return f"{place or 'top level'}: {problem}"


def _values_at(place: str, kind: type[msgspec.Struct]) -> tuple[list[str], list[str]]:
    """Return the words that may stand at a place, and what else may."""
    found: Any = kind
    for name in re.sub(r"\[[^]]*\]", "", place).split("."):
        struct = _struct_in(found)
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)} if struct else {}
        if name not in fields:
            return [], []
        found = fields[name].type
    words = _words_in(found)
    others = ["a number"] if _holds(found, int) else []
    return words, others + (["a mapping"] if _struct_in(found) else [])


def _words_in(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for argument in get_args(kind) for word in _words_in(argument)]


def _holds(kind: Any, wanted: type) -> bool:
    return kind is wanted or any(_holds(argument, wanted) for argument in get_args(kind))


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
