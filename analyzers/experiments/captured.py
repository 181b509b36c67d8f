"""The settings of a replica in a capture, as they were or as they might be."""

from dataclasses import replace

from analyzers.model import Capture
from analyzers.settings import Settings, read_settings
from analyzers.suggestions import instead_of
from otel_cache.errors import UsageError
from otel_cache.semconv import names


def settings_of(
    capture: Capture, replica: str | None = None, retention: str | None = None, budget: int | None = None
) -> Settings:
    """Return the settings of the latest life of `replica`; None: of all replicas, which then have the same.

    Args:
        capture: where the replica is.
        replica: its name.
        retention: another retention interval, in tokens or `dense`.
        budget: another batch-token limit.

    Raises:
        UsageError: there is no such replica, the replicas differ, or the interval is none.

    """
    found = {life.replica: read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives}
    if replica is not None and replica not in found:
        raise UsageError(f"--replica {replica}: not in the capture; {instead_of(replica, sorted(found))}")
    if replica is None and len(set(found.values())) > 1:
        raise UsageError(
            f"the replicas differ in their settings; choose one with --replica: {', '.join(sorted(found))}"
        )
    settings = found[replica] if replica is not None else next(iter(found.values()))
    if retention is not None:
        settings = replace(settings, retention=checked_interval(settings, retention))
    return settings if budget is None else replace(settings, max_batched_tokens=budget)


def checked_interval(settings: Settings, text: str) -> str:
    """Return a retention interval as vLLM would have it in effect.

    Raises:
        UsageError: it is neither `dense`, 0, nor a multiple of the scheduler block.

    """
    block = settings.scheduler_block
    if text != names.RETENTION_DENSE and (not text.isdecimal() or int(text) % block):
        raise UsageError(
            f"a retention interval is dense, 0, or a multiple of the scheduler block, {block:,}; not {text}"
        )
    return text
