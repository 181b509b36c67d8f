"""Breaks the instrumentation, and vLLM under it: what happens then, part by part and method by method."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from otel_cache import bindings, fingerprints, instrumentor, keys
from otel_cache.bindings.probe import find_class, subclasses
from otel_cache.errors import BindingError
from otel_cache.instrumentor import TARGETS, Target
from otel_cache.pipeline.sender import Pipeline


def parts() -> Iterator[tuple[str, Any, str]]:
    """Yield (label, owner, name) of every function and method of ours that runs while vLLM does."""
    modules = [
        importlib.import_module(f"{bindings.__name__}.{found.name}")
        for found in pkgutil.iter_modules(bindings.__path__)
    ]
    wraps = {target.wrap for target in TARGETS}
    for module in [*modules, fingerprints, keys]:
        for name, each in vars(module).items():
            if getattr(each, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(each) and each not in wraps:
                yield f"{_short(module)}.{name}", module, name
            elif inspect.isclass(each):
                for method, function in vars(each).items():
                    if inspect.isfunction(function) and (method == "__init__" or not method.startswith("__")):
                        yield f"{_short(module)}.{name}.{method}", each, method
    yield "the pipeline", Pipeline, "push"


def _short(module: ModuleType) -> str:
    return module.__name__.rsplit(".", 1)[-1]


def faults(results: Callable[[], Any], bare: Any) -> dict[str, Any]:
    """Let each part raise, one by one; return by part whether vLLM's results stayed what they were."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken on purpose")

    found: dict[str, Any] = {}
    for label, owner, name in parts():
        original = vars(owner)[name]
        setattr(owner, name, broken)
        try:
            try:
                instrumentor.install()
            except Exception as error:
                # The plugin swallows it; then vLLM has to be as it was.
                assert not instrumentor.installed(), error
            found[label] = results() == bare
        except Exception as error:
            found[label] = repr(error)
        finally:
            setattr(owner, name, original)
            instrumentor.uninstall()
    return found


def getters(results: Callable[[], Any], bare: Any) -> dict[str, Any]:
    """Let what takes the arguments of vLLM's calls raise, method by method."""
    from otel_cache.bindings import hooks, lookup_hooks, pool_hooks

    found: dict[str, Any] = {}
    for module in (hooks, lookup_hooks, pool_hooks):
        original = module.extractor

        def failing(*arguments: Any, _original: Any = original, **options: Any) -> Any:
            _original(*arguments, **options)  # probes as ever

            def broken(*_: Any, **__: Any) -> Any:
                raise RuntimeError("broken on purpose")

            return broken

        module.extractor = failing  # type: ignore[attr-defined]
        try:
            instrumentor.install()
            found[module.__name__] = results() == bare
        except Exception as error:
            found[module.__name__] = repr(error)
        finally:
            module.extractor = original  # type: ignore[attr-defined]
            instrumentor.uninstall()
    return found


def present() -> list[tuple[Target, list[type]]]:
    """Return the targets that this vLLM has, and the classes that define them."""
    found = []
    for target in TARGETS:
        try:
            owner = find_class(target.module, target.owner)
        except BindingError:
            continue
        owners = subclasses(owner) if target.every_subclass else [owner]
        if defining := [each for each in owners if target.method in vars(each)]:
            found.append((target, defining))
    return found


def renamed() -> dict[str, dict[str, Any]]:
    """Take each method away; return what patching says, and how many methods it has patched."""
    found = {}
    for target, owners in present():
        originals = [vars(owner)[target.method] for owner in owners]
        for owner in owners:
            delattr(owner, target.method)
        error = ""
        try:
            instrumentor.install()
        except BindingError as refusal:
            error = str(refusal)
        found[f"{target.owner}.{target.method}"] = {
            "required": target.required,
            "error": error,
            "patched": len(instrumentor.installed()),
        }
        instrumentor.uninstall()
        for owner, original in zip(owners, originals, strict=True):
            setattr(owner, target.method, original)
    return found


def new_parameters(results: Callable[[], Any], bare: Any) -> dict[str, Any]:
    """Give each method one more parameter: patched all the same, wherever it stands, and vLLM does what it did."""
    found: dict[str, Any] = {}
    for target, owners in present():
        owner = owners[-1]
        original = vars(owner)[target.method]
        function = getattr(original, "__func__", original)
        given = list(inspect.signature(function).parameters.values())
        extra = inspect.Parameter("priority", inspect.Parameter.KEYWORD_ONLY, default=None)
        in_front = [given[0], extra.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD), *given[1:]]
        name = f"{target.owner}.{target.method}"
        try:
            # Nobody calls it with a parameter in front, as a vLLM that had one would.
            _replace(owner, target.method, original, [each.replace(default=each.empty) for each in in_front])
            instrumentor.install()
            found[name] = f"{owner.__name__}.{target.method}" in instrumentor.installed() or bool(target.takes_over)
            instrumentor.uninstall()
            _replace(owner, target.method, original, [*given, extra])
            instrumentor.install()
            found[name] = found[name] and results() == bare
        except Exception as error:
            found[name] = repr(error)
        finally:
            instrumentor.uninstall()
            setattr(owner, target.method, original)
    return found


def _replace(owner: type, method: str, original: Any, parameters: list[inspect.Parameter]) -> None:
    function = getattr(original, "__func__", original)

    def newer(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("priority", None)
        return function(*args, **kwargs)

    newer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    newer.__qualname__ = function.__qualname__
    setattr(owner, method, classmethod(newer) if isinstance(original, classmethod) else newer)
