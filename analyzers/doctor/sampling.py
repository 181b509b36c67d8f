"""Which share of the traces goes to the back end, by the variables of the SDK's sampler."""

from collections.abc import Mapping

from analyzers.doctor.checks import Check, ok, warning
from otel_cache.config import read_config

NAME = "sampling"
SAMPLER = "OTEL_TRACES_SAMPLER"
ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"
DEFAULT = "parentbased_always_on"
_SHARES: dict[str, float | None] = {
    "always_on": 1.0,
    "always_off": 0.0,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
    "traceidratio": None,
    "parentbased_traceidratio": None,
}
"""The SDK's samplers, each with its share of the traces; None: the argument says it."""
_PARENT_BASED = "parentbased_"


def check_sampling(environ: Mapping[str, str]) -> Check:
    """Return what the sampler keeps from the back end, as the SDK reads its variables."""
    from otel_cache.sidecar.exporters import wants_export

    out = read_config(environ).out
    if not wants_export(None, out):
        return ok(NAME, f"none: nothing is exported{f', and {out} has every span' if out else ''}")
    given = environ.get(SAMPLER) or DEFAULT
    name = given.lower()
    if name not in _SHARES:
        says = f"{SAMPLER}={given} is no sampler of the SDK, which falls back to {DEFAULT}"
        return warning(NAME, f"{says}: every trace is exported", f"set it to one of {', '.join(_SHARES)}")
    variables, share = f"{SAMPLER}={given}", _SHARES[name]
    argument = environ.get(ARGUMENT, "")
    if share is None:
        variables += f", {ARGUMENT}={argument}" if argument else f", {ARGUMENT} not set"
        if (share := _ratio(argument)) is None:
            says = f"{variables}: not a number from 0 to 1, so that the SDK falls back to 1.0: every trace is exported"
            return warning(NAME, says, f"set {ARGUMENT} to a number from 0 to 1, such as 0.1")
    elif argument:
        says = f"{variables} takes no argument: {ARGUMENT}={argument} has no effect"
        return warning(NAME, says, f"unset it, or set {SAMPLER}={_PARENT_BASED}traceidratio")
    return _said(variables, share, name.startswith(_PARENT_BASED), out)


def _ratio(argument: str) -> float | None:
    try:
        ratio = float(argument)
    except ValueError:
        return None
    return ratio if 0 <= ratio <= 1 else None


def _said(variables: str, share: float, asks_callers: bool, out: str | None) -> Check:
    if share == 0:
        unless = " but those whose caller sampled them" if asks_callers else ""
        rest = f"; {out} has them all" if out else ""
        todo = f"unset {SAMPLER}, or set it to {_PARENT_BASED}traceidratio and {ARGUMENT} to a share above 0"
        says = f"{variables}: no spans of traces are exported{unless}{rest}"
        return warning(NAME, says, todo, unrecorded=not asks_callers and not out)
    callers = "; where a caller has decided, that holds" if asks_callers else ""
    if share == 1:
        return ok(NAME, f"{variables}: every trace is exported{callers}")
    return ok(NAME, f"{variables}: {share * 100:.4g}% of the traces are exported{callers}")
