"""Probing of vLLM's methods: what decides whether a version can be patched, and where an argument stands."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from otel_cache.errors import BindingError

Extractor = Callable[..., tuple[Any, ...]]


def find_class(module: str, name: str) -> type:
    """Return vLLM's class `name` of `module`.

    Raises:
        BindingError: there is no such module or class.

    """
    found = _find(module, name)
    if not isinstance(found, type):
        raise BindingError(f"vLLM has no class {module}.{name}")
    return found


def find_function(module: str, name: str) -> Callable[..., Any]:
    """Return vLLM's function `name` of `module`.

    Raises:
        BindingError: there is no such module or function.

    """
    found = _find(module, name)
    if not callable(found):
        raise BindingError(f"vLLM has no function {module}.{name}")
    return found  # type: ignore[no-any-return]


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise BindingError(f"vLLM has no module {module} that can be imported ({error})") from error


def find_method(owner: type, name: str) -> Any:
    """Return what `owner` itself defines under `name`: a function, a class method, ...

    Raises:
        BindingError: `owner` does not define it.

    """
    found = vars(owner).get(name)
    if found is None:
        raise BindingError(f"vLLM's {owner.__name__} has no method {name}")
    return found


def extractor(function: Callable[..., Any], *names: str, optional: Sequence[str] = ()) -> Extractor:
    """Return a function that takes what `function` takes and returns its arguments `names`, bound as a call binds them.

    Of `optional`, names that an argument has in one version or another, the first that `function` has comes last; None
    where it has none of them.

    Raises:
        BindingError: `function` has no such parameter.

    """
    # Compiled, so that the interpreter binds the arguments: inspect's own binding costs ten times as much.
    signature, _, wanted, scope = _compiled(function, names, optional)
    return eval(f"lambda {signature}: ({wanted},)", scope)  # type: ignore[no-any-return]


def around(
    function: Callable[..., Any],
    before: Callable[..., Any],
    after: Callable[..., None],
    *names: str,
    optional: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a wrapper that has the parameters of `function`, so that a call's arguments are bound but once.

    It calls `before(*arguments)` with the arguments `names` and the first of `optional`, then `function`, then, where
    `before` returned anything but None, `after(that, *arguments)`, and returns what `function` did. Neither may raise.

    Raises:
        BindingError: `function` has no such parameter.

    """
    signature, call, wanted, scope = _compiled(function, names, optional)
    scope |= {"_function": function, "_before": before, "_after": after}
    source = f"""
def wrapper({signature}):
    _found = _before({wanted})
    _result = _function({call})
    if _found is not None:
        _after(_found, {wanted})
    return _result
"""
    exec(source, scope)
    return scope["wrapper"]  # type: ignore[no-any-return]


def _compiled(
    function: Callable[..., Any], names: Sequence[str], optional: Sequence[str]
) -> tuple[str, str, str, dict[str, Any]]:
    """Return as source: parameters, the arguments of a call that hands them on, those that are wanted; and a scope."""
    parameters = inspect.signature(function).parameters
    for name in names:
        if name not in parameters:
            raise BindingError(f"vLLM's {function.__qualname__} has no parameter {name}")
    wanted = list(names)
    if optional:
        wanted.append(next((name for name in optional if name in parameters), "None"))
    forms: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*{0}",
        inspect.Parameter.VAR_KEYWORD: "**{0}",
        inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
    }
    call = [forms.get(each.kind, "{0}").format(each.name) for each in parameters.values()]
    scope = {f"_default_{name}": each.default for name, each in parameters.items()}
    return _parameters(parameters), ", ".join(call), ", ".join(wanted), scope


def _parameters(parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return `parameters` as they stand in a definition; their defaults go by the name `_default_...`."""
    parts: list[str] = []
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for each in parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = stars.get(each.kind, "")
        default = "" if each.default is inspect.Parameter.empty else f"=_default_{each.name}"
        parts.append(f"{star}{each.name}{default}")
    return ", ".join(parts)


def stored_attribute(cls: type, name: str) -> str:
    """Return the attribute that the property `name` of `cls` hands out, where there is one: it is quicker to read."""
    if isinstance(inspect.getattr_static(cls, name, None), property) and f"_{name}" in getattr(
        cls, "__dataclass_fields__", {}
    ):
        return f"_{name}"
    return name


def reader(cls: type, name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that reads the attribute `name` of each of some objects of `cls`."""
    attribute = stored_attribute(cls, name)
    # A loop that is compiled for one attribute takes half the time of a map of `attrgetter`.
    read: Callable[[Sequence[Any]], list[Any]] = eval(
        f"lambda those: [those[0].{attribute}] if len(those) == 1 else [each.{attribute} for each in those]"
    )
    return read


def subclasses(owner: type) -> list[type]:
    """Return `owner` and all its subclasses, each once."""
    found: dict[type, None] = {owner: None}
    child: type
    for child in owner.__subclasses__():
        found.update(dict.fromkeys(subclasses(child)))
    return list(found)
