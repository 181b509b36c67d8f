"""The hooks on prefix lookups: each calls the original once and hands its result back untouched."""

from collections.abc import Callable
from time import time_ns
from typing import Any

from otel_cache.bindings import pack
from otel_cache.bindings.context import Context, Function
from otel_cache.bindings.probe import Extractor, extractor
from otel_cache.bindings.replica import ATTRIBUTE, Replica
from otel_cache.faults import swallow

OUTCOME = "otel_cache_lookup"
"""Attribute of a request: what its latest lookup asked for and got."""


def lookup(original: Function, context: Context) -> Function:
    """Wrap `KVCacheManager.get_computed_blocks`, and its variant for connectors: nested calls are one lookup."""
    arguments_of = extractor(original, "self", "request", optional=("max_cache_hit_length",))

    def report(
        replica: Replica, result: Any, start: int, passes: list[tuple[Any, ...]], arguments: tuple[Any, ...]
    ) -> None:
        manager, request, limit = arguments
        skipped = not manager.enable_caching or bool(getattr(request, "skip_reading_prefix_cache", False))
        hit = result[1]
        junction = result[2] if len(result) > 2 else 0
        # A connector may bring the states that the other groups lack at the attention group's hit.
        connector = len(result) > 3 and bool(result[3])
        uncached = max(junction - hit, 0) if junction else 0
        _emit(replica, request, limit, hit, uncached, skipped, connector, start, passes, context)

    return _outermost(original, arguments_of, report)


def per_group_lookup(original: Function, context: Context) -> Function:
    """Wrap `find_longest_cache_hit_per_group` of a coordinator, where the scheduler itself calls it for a connector."""
    arguments_of = extractor(original, "block_hashes", "max_cache_hit_length")

    def report(
        replica: Replica, result: Any, start: int, passes: list[tuple[Any, ...]], arguments: tuple[Any, ...]
    ) -> None:
        hashes, limit = arguments
        hits = result[1]
        request = replica.request_of(hashes)
        if request is not None:
            _emit(replica, request, limit, max(hits), 0, False, max(hits) > min(hits), start, passes, context)

    return _outermost(original, arguments_of, report)


def _outermost(original: Function, arguments_of: Extractor, report: Callable[..., None]) -> Function:
    """Return a wrapper that gathers the finders' passes within a call and has `report` tell of it; not nested ones."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica or replica.passes is not None:
            return original(self, *args, **kwargs)
        passes: list[tuple[Any, ...]] = []
        replica.passes = passes
        start = time_ns()
        try:
            result = original(self, *args, **kwargs)
        finally:
            replica.passes = None
        try:
            report(replica, result, start, passes, arguments_of(self, *args, **kwargs))
        except Exception as error:
            swallow("the lookup hook", error)
        return result

    return wrapper


def _emit(
    replica: Replica,
    request: Any,
    limit: int | None,
    hit: int,
    uncached: int,
    skipped: bool,
    connector: bool,
    start: int,
    passes: list[tuple[Any, ...]],
    context: Context,
) -> None:
    tokens = request.num_tokens
    if limit is None:
        limit = tokens - 1
    step = replica.steps + 1
    outcome = (tokens, limit, hit, uncached, skipped, connector, passes)
    # A request that waits is looked up again on every step.
    if getattr(request, OUTCOME, None) == outcome:
        context.emit((pack.repeated, replica, request, start, time_ns(), step, outcome))
        return
    setattr(request, OUTCOME, outcome)
    context.emit((pack.lookup, replica, request, start, time_ns(), step, outcome))


def finder(original: Function, context: Context) -> Function:
    """Wrap a manager's `find_longest_cache_hit`: what the groups were asked, and what they had."""
    arguments_of = extractor(
        original, "block_pool", "kv_cache_group_ids", "max_length", "alignment_tokens",
        optional=("drop_eagle_block", "use_eagle"),
    )  # fmt: skip

    def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        try:
            pool, groups, asked, alignment, drop = arguments_of(cls, *args, **kwargs)
            replica = getattr(pool, ATTRIBUTE, None)
            if replica and replica.passes is not None:
                first = groups[0]
                hit = _hit_of(result, replica.block_sizes[first])
                unit = min(alignment, replica.block_sizes[first]) if drop and replica.drops[first] and hit else 0
                replica.passes.append((list(groups), asked, hit, unit, alignment))
        except Exception as error:
            swallow("the group lookup hook", error)
        return result

    return wrapper


def _hit_of(result: Any, block_size: int) -> int:
    # Later versions return the length beside the blocks, earlier ones the blocks alone.
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], int):
        return result[1]
    return len(result[0]) * block_size
