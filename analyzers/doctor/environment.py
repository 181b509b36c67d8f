"""What the environment variables ask for. They are those of vLLM's process only if doctor is run as vLLM is."""

import difflib
import sys
from collections.abc import Collection, Iterator, Mapping

from analyzers.doctor.checks import Check, ok, problem, warning
from otel_cache.config import (
    DISABLED_HOOKS,
    ENABLED,
    PLUGIN,
    PLUGINS,
    PREFIX,
    VARIABLES,
    admits_plugin,
    forbidden_by,
    is_true,
    read_config,
    unclear,
    with_plugin,
)
from otel_cache.package import VERSION

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)


def check_environment(environ: Mapping[str, str], hooks: Collection[str]) -> Iterator[Check]:
    """Yield what is to be said of `environ`; `hooks` are the hooks that there are, empty where not known."""
    yield _versions()
    yield _enabled(environ)
    yield from _misspelled(environ)
    yield _plugins(environ)
    yield from _disabled_hooks(environ, hooks)


def _versions() -> Check:
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{VERSION}, Python {python} ({sys.executable})"
    if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return ok("otel-cache", text)
    return warning("otel-cache", f"{text}, which it was not tested with", "use Python 3.11 to 3.14")


def _enabled(environ: Mapping[str, str]) -> Check:
    if (variable := forbidden_by(environ)) is not None:
        says = f"{variable}={environ[variable]} keeps the plugin off"
        return problem("enabled", says, f"unset {variable}", untraced=True)
    value = environ.get(ENABLED)
    if is_true(value):
        return ok("enabled", f"{ENABLED}={value}")
    ways = f"set {ENABLED}=true, or start vLLM with `otel-cache run --`"
    if not value:
        says = f"off: {ENABLED} is not set in this environment"
        return warning("enabled", says, f"{ways} or `opentelemetry-instrument`", untraced=True)
    todo = f"{ways}, or unset it and start vLLM with `opentelemetry-instrument`"
    neither = "is neither true nor false: it " if unclear(value) else ""
    return problem("enabled", f"{ENABLED}={value} {neither}keeps the plugin off", todo, untraced=True)


def _misspelled(environ: Mapping[str, str]) -> Iterator[Check]:
    ours = sorted(name.removeprefix(PREFIX) for name in VARIABLES)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in VARIABLES:
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX).upper(), ours, n=1)
        todo = f"did you mean {PREFIX}{near[0]}?" if near else f"after {PREFIX} there may be {', '.join(ours)}"
        yield warning("variables", f"{name} is read by nobody: there is no such variable", todo)


def _plugins(environ: Mapping[str, str]) -> Check:
    value = environ.get(PLUGINS)
    if value is None:
        return ok(PLUGINS, "not set: vLLM loads every plugin")
    if admits_plugin(value):
        return ok(PLUGINS, f"{value} admits {PLUGIN}")
    says = f"{value!r} shuts {PLUGIN} out: vLLM does not load it"
    return problem(PLUGINS, says, f"set {PLUGINS}={with_plugin(value)}", untraced=True)


def _disabled_hooks(environ: Mapping[str, str], hooks: Collection[str]) -> Iterator[Check]:
    disabled = read_config(environ).disabled_hooks
    if not disabled:
        yield ok("disabled hooks", "none")
        return
    known = disabled & set(hooks) if hooks else disabled
    if known:
        names = ", ".join(sorted(known))
        yield warning("disabled hooks", f"{names}: what they record is missing", f"unset {DISABLED_HOOKS}")
    if unknown := disabled - known:
        says = f"{DISABLED_HOOKS} names {', '.join(sorted(unknown))}, which is no hook"
        yield warning("disabled hooks", says, f"there are {', '.join(sorted(set(hooks)))}")
