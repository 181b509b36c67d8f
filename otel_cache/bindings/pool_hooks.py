"""The hooks on the block pool: each calls the original once and hands its result back untouched."""

from collections.abc import Sequence
from itertools import compress
from time import time_ns
from typing import Any

from otel_cache.bindings import pack
from otel_cache.bindings.context import Context, Function
from otel_cache.bindings.probe import around, extractor
from otel_cache.bindings.replica import ATTRIBUTE, Replica
from otel_cache.errors import BindingError
from otel_cache.faults import swallow


def store(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.cache_full_blocks`: which blocks got a key, which were refused, which do not exist."""
    emit = context.emit

    def before(
        self: Any, request: Any, blocks: Any, first: int, end: int, block_size: int, group: int, mask: Any
    ) -> tuple[Replica, Any] | None:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return None
        try:
            # Only where hits may end inside a block can a block that becomes full have a key already.
            return replica, _keys_of(replica, self, blocks[first:end]) if replica.partial_hits else None
        except Exception as error:
            swallow("the store hook", error)
            return None

    def after(
        found: tuple[Replica, Any], self: Any, request: Any, blocks: Any, first: int, end: int, block_size: int,
        group: int, mask: Any,
    ) -> None:  # fmt: skip
        try:
            replica, replaced = found
            if replaced is not None and replaced[0]:
                _emit_removed(replica, replaced[0], replaced[1], "replaced", context)
            covered = blocks[first:end]
            if covered:
                keys = replica.keys_of(covered)
                emit((pack.store, replica, request, time_ns(), group, first, block_size, covered, keys, mask))
        except Exception as error:
            swallow("the store hook", error)

    return around(
        original, before, after,
        "self", "request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id",
        optional=("block_mask",),
    )  # fmt: skip


def partial_store(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.cache_partial_block`: keys at positions inside a block."""
    arguments_of = extractor(original, "block", "request", "kv_cache_group_id", "num_tokens")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return original(self, *args, **kwargs)
        blocks: Sequence[Any] = ()
        before: Sequence[Any] = ()
        try:
            block, request, group, position = arguments_of(self, *args, **kwargs)
            if not block.is_null:
                blocks, before = _keys_of(replica, self, [block])
        except Exception as error:
            swallow("the partial store hook", error)
            return original(self, *args, **kwargs)
        key = original(self, *args, **kwargs)
        try:
            others = [known for known in before if known != key]
            if others:
                _emit_removed(replica, blocks[: len(others)], others, "replaced", context)
            # vLLM calls this again on every step of the request; the key is news but once.
            if key is not None and key not in before:
                context.emit((pack.partial_store, replica, request, time_ns(), group, position, key))
        except Exception as error:
            swallow("the partial store hook", error)
        return key

    return wrapper


def evict(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.get_new_blocks`: which keys the new blocks pushed out."""
    emit = context.emit

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return original(self, *args, **kwargs)
        try:
            replica.taking, replica.taken = self, None
            cached = len(replica.cached_keys)
        except Exception as error:
            swallow("the evict hook", error)
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            replica.taking = replica.taken = None
            raise
        try:
            taken = replica.taken
            # The sender is the last to hold the keys, so that it is there that they are freed.
            replica.taking = replica.taken = None
            if taken is None:
                raise BindingError("vLLM's get_new_blocks took no blocks by popleft_n")
            blocks, keys = taken
            # Each key that is gone left one key less: as many gone as there are blocks, and each had one, without copy.
            gone = cached - len(replica.cached_keys)
            if gone != len(keys):
                blocks, keys = list(compress(blocks, keys)), list(filter(None, keys))
            if gone != len(keys):
                _emit_removed(replica, blocks, keys, "allocation", context)
            elif keys:
                emit((pack.evict, replica, time_ns(), blocks, keys, "allocation"))
        except Exception as error:
            swallow("the evict hook", error)
        return result

    return wrapper


def take(original: Function, context: Context) -> Function:
    """Wrap `FreeKVCacheBlockQueue.popleft_n`, within `get_new_blocks`: what the blocks carry, before they lose it."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = original(self, *args, **kwargs)
        replica = getattr(self, ATTRIBUTE, None)
        if replica and replica.taking is not None:
            try:
                if replica.taking.cached_block_hashes_by_block:
                    replica.taken = _keys_of(replica, replica.taking, blocks)
                else:
                    replica.taken = blocks[:], replica.keys_of(blocks)
            except Exception as error:
                swallow("the evict hook", error)
        return blocks

    return wrapper


def withdraw(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.evict_blocks`: keys that vLLM takes back, such as those of blocks that could not be loaded."""
    ids_of = extractor(original, "block_ids")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return original(self, *args, **kwargs)
        blocks: Sequence[Any] = ()
        keys: Sequence[Any] = ()
        try:
            (ids,) = ids_of(self, *args, **kwargs)
            blocks, keys = _keys_of(replica, self, [self.blocks[number] for number in ids])
        except Exception as error:
            swallow("the withdraw hook", error)
        result = original(self, *args, **kwargs)
        if keys:
            try:
                _emit_removed(replica, blocks, keys, "allocation", context)
            except Exception as error:
                swallow("the withdraw hook", error)
        return result

    return wrapper


def _keys_of(replica: Replica, pool: Any, blocks: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return, in parallel, the blocks that carry a key and their keys; a block may carry several."""
    keys = replica.keys_of(blocks)
    keyed, keys = list(compress(blocks, keys)), list(filter(None, keys))
    more = pool.cached_block_hashes_by_block
    if more:
        for block, key in list(zip(keyed, keys, strict=True)):
            extra = [other for other in more.get(block.block_id, ()) if other != key]
            keyed += [block] * len(extra)
            keys += extra
    return keyed, keys


def _emit_removed(replica: Replica, blocks: Sequence[Any], keys: Sequence[Any], reason: str, context: Context) -> None:
    """Report those of `keys` of which no copy is left, each once: one copy of several is no loss."""
    cached = replica.cached_keys
    if len(keys) == 1:
        if keys[0] not in cached:
            context.emit((pack.evict, replica, time_ns(), blocks, keys, reason))
        return
    gone = {key: block for key, block in zip(keys, blocks, strict=True) if key not in cached}
    if gone:
        context.emit((pack.evict, replica, time_ns(), list(gone.values()), list(gone), reason))


def reset(original: Function, context: Context) -> Function:
    """Wrap `BlockPool.reset_prefix_cache`."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        replica = getattr(self, ATTRIBUTE, None)
        if replica and result:
            try:
                replica.renew_cache()
                context.emit((pack.reset, replica, time_ns()))
            except Exception as error:
                swallow("the reset hook", error)
        return result

    return wrapper
