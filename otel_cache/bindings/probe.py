"""Probing of vLLM's methods: what decides whether a version can be patched, and where an argument stands."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from otel_cache.errors import BindingError

Getter = Callable[[Sequence[Any], Mapping[str, Any]], Any]


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


def getter(function: Callable[..., Any], name: str) -> Getter:
    """Return how to get the argument `name` out of a call of `function`, given its args and kwargs.

    The call's own arguments come first in `args`, `self` or `cls` included.

    Raises:
        BindingError: `function` has no such parameter.

    """
    parameters = inspect.signature(function).parameters
    if name not in parameters:
        raise BindingError(f"vLLM's {function.__qualname__} has no parameter {name}")
    index = list(parameters).index(name)
    default = parameters[name].default
    positional = parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY

    def get(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        if positional and index < len(args):
            return args[index]
        return None if default is inspect.Parameter.empty else default

    return get


def optional_getter(function: Callable[..., Any], *names: str) -> Getter:
    """Return a getter for the first of `names` that `function` has; one that yields None where it has none."""
    for name in names:
        if name in inspect.signature(function).parameters:
            return getter(function, name)
    return lambda args, kwargs: None


def subclasses(owner: type) -> list[type]:
    """Return `owner` and all its subclasses, each once."""
    found: dict[type, None] = {owner: None}
    child: type
    for child in owner.__subclasses__():
        found.update(dict.fromkeys(subclasses(child)))
    return list(found)
