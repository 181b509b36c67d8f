"""A replica's settings as in effect, read from the objects that its scheduler was built with."""

import importlib
import os
import socket
from typing import Any

from otel_cache.package import TESTED_VLLM
from otel_cache.semconv import names

_KINDS = {
    "MambaManager": names.KIND_MAMBA,
    "SlidingWindowManager": names.KIND_SLIDING_WINDOW,
    "ChunkedLocalAttentionManager": names.KIND_CHUNKED_LOCAL,
    "CrossAttentionManager": "cross_attention",
    "CircularBufferManager": "circular_buffer",
    "FullAttentionManager": names.KIND_FULL_ATTENTION,
}


def vllm_version() -> str:
    """Return vLLM's version as it says itself."""
    return str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))


def is_tested(version: str) -> bool:
    """Whether `version` is one that the instrumentation was tested with."""
    return any(version == tested or version.startswith(tested + ".") for tested in TESTED_VLLM)


def group_kind(manager: Any) -> str:
    """Return the kind of a group: the first known manager class, most derived first."""
    for cls in type(manager).__mro__:
        if cls.__name__ in _KINDS:
            return _KINDS[cls.__name__]
    return type(manager).__name__


def group_window(manager: Any) -> int:
    """Return the attention window of a group in tokens; 0: it has none."""
    for attribute in ("sliding_window", "attention_chunk_size"):
        window = getattr(manager, attribute, None)
        if isinstance(window, int):
            return window
    return 0


def lookup_order(coordinator: Any) -> list[list[int]]:
    """Return the groups that are looked up together, in the order of the lookup."""
    together = getattr(coordinator, "attention_groups", None)
    if together is None:
        return [[index] for index in range(len(coordinator.single_type_managers))]
    # Up to 0.26 an entry is a tuple, later a named one: the group ids are its only list of int.
    return [next(list(part) for part in entry if isinstance(part, list)) for entry in together]


def hit_alignment(coordinator: Any) -> int:
    """Return the hit grid in tokens: hits end on its multiples."""
    alignment = getattr(coordinator, "_cache_hit_alignment_tokens", None)
    if alignment is not None:
        return int(alignment)
    return int(coordinator.single_type_managers[0].block_size)


def retention_interval(coordinator: Any) -> str:
    """Return the retention interval as in effect: "dense", or tokens."""
    interval = getattr(coordinator, "retention_interval", None)
    return names.RETENTION_DENSE if interval is None else str(interval)


def drops(manager: Any) -> bool:
    """Whether the group drops a block for speculation, in effect: a Mamba finder is told to and does not."""
    return bool(getattr(manager, "use_eagle", False)) and group_kind(manager) != names.KIND_MAMBA


def proof_limit() -> str:
    """Return how far a group that drops a block may look in this version of vLLM.

    The versions whose hybrids look one block past the hit limit name that margin in a function of its own.
    """
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    return names.PROOF_BLOCK_BEYOND if hasattr(utils, "eagle_proof_margin") else names.PROOF_LAST_TOKEN


def replica_id(scheduler: Any, index: int, configured: str | None) -> str:
    """Return the stable name of the replica.

    One that the embedding program gave the scheduler, the configured one, or the host's name; the data-parallel
    index is appended to the latter two where it can differ.
    """
    given = getattr(scheduler, "otel_cache_replica_id", None)
    if given is not None:
        return str(given)
    base = configured or socket.gethostname()
    return base if configured and index == 0 else f"{base}:{index}"


def replica_attributes(scheduler: Any, configured_replica_id: str | None, key_id: str) -> dict[str, Any]:
    """Return the resource attributes of the replica that `scheduler` serves; what cannot be read is left out."""
    manager = scheduler.kv_cache_manager
    coordinator = manager.coordinator
    managers = coordinator.single_type_managers
    config = scheduler.vllm_config
    cache, speculative = config.cache_config, getattr(config, "speculative_config", None)
    version = vllm_version()
    index = int(getattr(config.parallel_config, "data_parallel_index", 0) or 0)
    lookahead = int(getattr(coordinator.block_pool, "num_hash_lookahead_tokens", 0) or 0)
    attributes: dict[str, Any] = {
        names.REPLICA_ID: replica_id(scheduler, index, configured_replica_id),
        names.VLLM_VERSION: version,
        names.VLLM_COMMIT: _commit(),
        names.MODEL: str(getattr(config.model_config, "served_model_name", "") or config.model_config.model),
        names.DATA_PARALLEL_INDEX: index,
        names.SUPPORT: "tested" if is_tested(version) else "untested",
        names.GROUPS_KIND: [group_kind(m) for m in managers],
        names.GROUPS_BLOCK_SIZE: [int(m.block_size) for m in managers],
        names.GROUPS_WINDOW: [group_window(m) for m in managers],
        names.GROUPS_FLAGGED: [bool(getattr(m, "use_eagle", False)) for m in managers],
        names.GROUPS_DROPS: [drops(m) for m in managers],
        names.GROUPS_FINE_GRAINED: [bool(getattr(m, "supports_fine_grained_hash_lookup", False)) for m in managers],
        names.GROUPS_LOOKUP_ORDER: [",".join(map(str, ids)) for ids in lookup_order(coordinator)],
        names.SCHEDULER_BLOCK_SIZE: int(getattr(coordinator, "scheduler_block_size", scheduler.block_size)),
        names.SPLIT_BLOCK_SIZE: int(getattr(cache, "block_size", 0) or 0) or "",
        names.HASH_BLOCK_SIZE: int(coordinator.block_pool.hash_block_size),
        names.HIT_ALIGNMENT: hit_alignment(coordinator),
        names.PARTIAL_HITS: bool(getattr(coordinator, "enable_partial_hash_hits", False)),
        names.HASH_LOOKAHEAD_TOKENS: lookahead,
        names.PROOF_LIMIT: proof_limit(),
        names.RETENTION_INTERVAL: retention_interval(coordinator),
        names.PREFIX_CACHING: bool(manager.enable_caching),
        names.NUM_BLOCKS: int(coordinator.block_pool.num_gpu_blocks),
        names.HASH_ALGORITHM: str(getattr(cache, "prefix_caching_hash_algo", "")),
        names.MAMBA_CACHE_MODE: str(getattr(cache, "mamba_cache_mode", "")),
        names.SHARED_PREFIX_CHECKPOINT: bool(getattr(scheduler, "mamba_shared_prefix_checkpoint", False)),
        names.SPECULATIVE_METHOD: str(getattr(speculative, "method", "") or ""),
        names.SPECULATIVE_TOKENS: int(getattr(speculative, "num_speculative_tokens", 0) or 0),
        names.MAX_BATCHED_TOKENS: int(config.scheduler_config.max_num_batched_tokens),
        names.MAX_NUM_SEQS: int(getattr(config.scheduler_config, "max_num_seqs", 0) or 0) or "",
        names.ASYNC_SCHEDULING: bool(getattr(config.scheduler_config, "async_scheduling", False)),
        names.FINGERPRINT_KEY_ID: key_id,
        "process.pid": os.getpid(),
    }
    return {name: value for name, value in attributes.items() if value != ""}


def _commit() -> str:
    """Return the commit that vLLM was built from, empty where its build does not say."""
    try:
        module = importlib.import_module("vllm._version")
    except ImportError:
        return ""
    return str(getattr(module, "__commit_id__", None) or getattr(module, "commit_id", None) or "")


def worker_attributes(worker: Any, replica_id: str) -> dict[str, Any]:
    """Return the resource attributes of a worker of `replica_id`."""
    rank = getattr(worker, "global_rank", None)
    return {
        names.REPLICA_ID: replica_id,
        names.VLLM_VERSION: vllm_version(),
        names.WORKER_RANK: int(rank if rank is not None else getattr(worker, "rpc_rank", 0)),
        "process.pid": os.getpid(),
    }
