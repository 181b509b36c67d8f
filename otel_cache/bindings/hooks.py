"""The hooks: what wraps vLLM's methods. Each calls the original once and hands its result back untouched.

A hook copies a few numbers and references into the ring and leaves; `pack` makes records of them elsewhere. Nothing
here runs per block of the pool or per running request, but for the blocks of a call that registers or allocates them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Any

from otel_cache.bindings import pack
from otel_cache.bindings.probe import Getter, getter, optional_getter
from otel_cache.bindings.replica import ATTRIBUTE, Replica
from otel_cache.faults import swallow

MAX_PROBES = 64

Emit = Callable[..., None]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Context:
    """What the hooks need of the rest: where events go, and how a scheduler becomes a replica."""

    emit: Emit
    flush: Callable[[], None]
    attach: Callable[[Any], Replica]


def schedule(original: Function, context: Context) -> Function:
    """Wrap `Scheduler.schedule`: a record per step, and the scheduler's first sight."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if replica is None:
            replica = _attach(self, context)
        start = time_ns()
        output = original(self, *args, **kwargs)
        if replica is not False:
            try:
                _step(replica, self, output, start, context.emit)
            except Exception as error:
                swallow("the step hook", error)
        return output

    return wrapper


def _attach(scheduler: Any, context: Context) -> Any:
    try:
        replica = context.attach(scheduler)
        context.emit(pack.announce, replica, time_ns())
        return replica
    except Exception as error:
        swallow("reading a scheduler's settings", error)
        setattr(scheduler, ATTRIBUTE, False)
        return False


def _step(replica: Replica, scheduler: Any, output: Any, start: int, emit: Emit) -> None:
    replica.steps += 1
    # Workers and update_from_output get this object back: it pairs the step with its execution.
    output.otel_cache_step = replica.steps
    emit(
        pack.step,
        replica,
        output,
        replica.steps,
        start,
        time_ns(),
        len(scheduler.running),
        len(scheduler.waiting),
        replica.pool.get_usage(),
    )


def update(original: Function, context: Context) -> Function:
    """Wrap `Scheduler.update_from_output`: when a step's execution was over."""
    output_of = getter(original, "scheduler_output")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time_ns()
        result = original(self, *args, **kwargs)
        replica = getattr(self, ATTRIBUTE, None)
        if replica:
            try:
                index = getattr(output_of((self, *args), kwargs), "otel_cache_step", None)
                if index is not None:
                    context.emit(pack.done, replica, index, start, time_ns())
            except Exception as error:
                swallow("the update hook", error)
        return result

    return wrapper


def lookup(original: Function, context: Context) -> Function:
    """Wrap `KVCacheManager.get_computed_blocks`: a record per call, nested calls being one."""
    request_of = getter(original, "request")
    limit_of = optional_getter(original, "max_cache_hit_length")

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
            arguments = (self, *args)
            _lookup(
                replica, self, request_of(arguments, kwargs), limit_of(arguments, kwargs), result, start, passes,
                context.emit,
            )  # fmt: skip
        except Exception as error:
            swallow("the lookup hook", error)
        return result

    return wrapper


def _lookup(
    replica: Replica,
    manager: Any,
    request: Any,
    limit: int | None,
    result: Any,
    start: int,
    passes: list[tuple[Any, ...]],
    emit: Emit,
) -> None:
    hit = result[1]
    junction = result[2] if len(result) > 2 else 0
    tokens = request.num_tokens
    if limit is None:
        limit = tokens - 1
    skipped = not manager.enable_caching or bool(getattr(request, "skip_reading_prefix_cache", False))
    uncached = max(junction - hit, 0) if junction else 0
    above = [] if skipped else _stored_above(replica, request.block_hashes, hit, limit)
    emit(pack.lookup, replica, request, start, time_ns(), tokens, limit, hit, uncached, skipped, passes, above)


def _stored_above(replica: Replica, hashes: Sequence[Any], hit: int, limit: int) -> list[int | None]:
    """Return per group the nearest hit-grid position above the hit at which it holds a key; None: none nearby."""
    grid, unit = replica.alignment, replica.hash_block
    last = min(limit, len(hashes) * unit, hit + MAX_PROBES * grid)
    positions = range(hit + grid, last + 1, grid)
    cached = replica.pool.get_cached_block
    found: list[int | None] = []
    for group, block_size in enumerate(replica.block_sizes):
        ends = positions if replica.partial_hits else (p for p in positions if p % block_size == 0)
        found.append(next((p for p in ends if cached(hashes[p // unit - 1], [group])), None))
    return found


def finder(original: Function, context: Context) -> Function:
    """Wrap a manager's `find_longest_cache_hit`: what the groups were asked, and what they had."""
    pool_of = getter(original, "block_pool")
    groups_of = getter(original, "kv_cache_group_ids")
    asked_of = getter(original, "max_length")
    alignment_of = getter(original, "alignment_tokens")
    drop_of = optional_getter(original, "drop_eagle_block", "use_eagle")

    def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        try:
            arguments = (cls, *args)
            replica = getattr(pool_of(arguments, kwargs), ATTRIBUTE, None)
            if replica and replica.passes is not None:
                groups = groups_of(arguments, kwargs)
                alignment = alignment_of(arguments, kwargs)
                hit = _hit_of(result, replica.block_sizes[groups[0]])
                unit = 0
                if drop_of(arguments, kwargs) and replica.drops[groups[0]] and hit:
                    unit = min(alignment, replica.block_sizes[groups[0]])
                replica.passes.append((list(groups), asked_of(arguments, kwargs), hit, unit, alignment))
        except Exception as error:
            swallow("the group lookup hook", error)
        return result

    return wrapper


def _hit_of(result: Any, block_size: int) -> int:
    # Later versions return the length beside the blocks, earlier ones the blocks alone.
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], int):
        return result[1]
    return len(result[0]) * block_size


def store(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.cache_full_blocks`: which blocks got a key, which were refused, which do not exist."""
    names = ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id")
    getters: list[Getter] = [getter(original, name) for name in names]
    mask_of = optional_getter(original, "block_mask")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return original(self, *args, **kwargs)
        replaced: list[tuple[int, Any]] = []
        arguments = (self, *args)
        try:
            request, blocks, first, end, block_size, group = [get(arguments, kwargs) for get in getters]
            covered = blocks[first:end]
            if replica.partial_hits:
                replaced = _keys_of(self, covered)
        except Exception as error:
            swallow("the store hook", error)
            return original(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        try:
            _emit_removed(replica, self, replaced, "replaced", context.emit)
            if covered:
                keys = [block.block_hash for block in covered]
                mask = mask_of(arguments, kwargs)
                context.emit(pack.store, replica, request, time_ns(), group, first, block_size, covered, keys, mask)
        except Exception as error:
            swallow("the store hook", error)
        return result

    return wrapper


def partial_store(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.cache_partial_block`: keys at positions inside a block."""
    block_of = getter(original, "block")
    getters: list[Getter] = [getter(original, name) for name in ("request", "kv_cache_group_id", "num_tokens")]

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return original(self, *args, **kwargs)
        arguments = (self, *args)
        before: list[tuple[int, Any]] = []
        try:
            block = block_of(arguments, kwargs)
            before = [] if block.is_null else _keys_of(self, [block])
        except Exception as error:
            swallow("the partial store hook", error)
        key = original(self, *args, **kwargs)
        try:
            removed = [entry for entry in before if entry[1] != key]
            _emit_removed(replica, self, removed, "replaced", context.emit)
            # vLLM calls this again on every step of the request; the key is news but once.
            if key is not None and all(entry[1] != key for entry in before):
                request, group, position = (get(arguments, kwargs) for get in getters)
                context.emit(pack.partial_store, replica, request, time_ns(), group, position, key)
        except Exception as error:
            swallow("the partial store hook", error)
        return key

    return wrapper


def evict(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.get_new_blocks`: which keys the new blocks pushed out."""
    count_of = getter(original, "num_blocks")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        leaving: list[tuple[int, Any]] = []
        if replica:
            try:
                leaving = _next_out(self, count_of((self, *args), kwargs))
            except Exception as error:
                swallow("the evict hook", error)
        result = original(self, *args, **kwargs)
        if replica and leaving:
            try:
                _emit_removed(replica, self, leaving, "allocation", context.emit)
            except Exception as error:
                swallow("the evict hook", error)
        return result

    return wrapper


def _next_out(pool: Any, count: int) -> list[tuple[int, Any]]:
    """Return (block id, key) of the keys that the next `count` blocks of the free queue carry."""
    queue = pool.free_block_queue
    block = queue.fake_free_list_head.next_free_block
    hashed = []
    while count > 0 and block is not None and block is not queue.fake_free_list_tail:
        if block.block_hash is not None:
            hashed.append(block)
        block = block.next_free_block
        count -= 1
    return _keys_of(pool, hashed)


def _keys_of(pool: Any, blocks: Sequence[Any]) -> list[tuple[int, Any]]:
    more = pool.cached_block_hashes_by_block
    keys: list[tuple[int, Any]] = []
    for block in blocks:
        if block.block_hash is not None:
            keys.append((block.block_id, block.block_hash))
        if more and block.block_id in more:
            keys += [(block.block_id, key) for key in more[block.block_id] if key != block.block_hash]
    return keys


def _emit_removed(replica: Replica, pool: Any, removed: list[tuple[int, Any]], reason: str, emit: Emit) -> None:
    """Report those of `removed` of which no copy is left, each once: one copy of several is no loss."""
    cache = pool.cached_block_hash_to_block
    gone = {key: block for block, key in removed if cache.get_one_block(key) is None}
    if gone:
        emit(pack.evict, replica, time_ns(), gone, reason)


def reset(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.reset_prefix_cache`."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        replica = getattr(self, ATTRIBUTE, None)
        if replica and result:
            try:
                context.emit(pack.reset, replica, time_ns())
            except Exception as error:
                swallow("the reset hook", error)
        return result

    return wrapper


def shutdown(original: Function, context: Context) -> Function:
    """Wrap `EngineCore.shutdown`: what was captured goes out before the process may be killed."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            context.flush()
        except Exception as error:
            swallow("the shutdown hook", error)
        return original(self, *args, **kwargs)

    return wrapper
