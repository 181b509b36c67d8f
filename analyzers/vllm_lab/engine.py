"""Builds vLLM's configuration, KV-cache groups and scheduler for a scenario. Runs in the lab's child process.

Everything here is vLLM's own, taken as `EngineCore.__init__` takes it; what differs between versions is found by
asking for names. Only the model's memory profile is left out: the scenario says how many blocks there are.
"""

import contextlib
import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.vllm_lab.connectors import tensors, transfer_config
from analyzers.vllm_lab.model import write_config
from analyzers.vllm_lab.scenario import Engine, Group
from otel_cache.errors import LabError

RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
MODEL = "lab-model"
POSITIONS = 1 << 24


@dataclass(frozen=True)
class Replica:
    """A scheduler, and the function that hashes the blocks of its requests."""

    scheduler: Any
    block_hasher: Callable[..., Any]
    queue_size: int


def known(kind: type, **values: Any) -> Any:
    """Construct the dataclass `kind` from those of `values` that this version of it has."""
    names = _field_names(kind)
    return kind(**{name: value for name, value in values.items() if name in names})


def accepted(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Return those of `values` that `function` takes by name."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


def build_replicas(engine: Engine, count: int) -> list[Replica]:
    """Build `count` replicas with the same settings, each with a block pool of its own.

    Raises:
        LabError: vLLM refuses the settings; the message is vLLM's.

    """
    import vllm

    with _retention_variable(engine):
        try:
            return [_build(engine, index) for index in range(count)]
        except (ValueError, AssertionError, NotImplementedError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise LabError(f"vLLM {vllm.__version__} refuses the scenario's engine: {reason}") from error


@contextlib.contextmanager
def _retention_variable(engine: Engine) -> Iterator[None]:
    """Up to 0.28 vLLM reads the interval from the environment when it builds the coordinator."""
    interval = engine.prefix_cache_retention_interval
    os.environ.pop(RETENTION_VARIABLE, None)
    if isinstance(interval, int):
        os.environ[RETENTION_VARIABLE] = str(interval)
    try:
        yield
    finally:
        os.environ.pop(RETENTION_VARIABLE, None)


def _build(engine: Engine, index: int) -> Replica:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.structured_output import StructuredOutputManager

    config = _vllm_config(engine)
    cache = config.cache_config
    kv_cache = _kv_cache_config(engine, config)
    scheduler_block, hash_block = _block_sizes(engine, kv_cache, config)
    scheduler_class = config.scheduler_config.get_scheduler_cls()
    scheduler = scheduler_class(
        **accepted(
            _constructor(scheduler_class),
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=scheduler_block,
            hash_block_size=hash_block,
            log_stats=True,
        )
    )
    if engine.split_block_size:
        # As where a server's platform sets it anew once the scheduler is made.
        cache.block_size = engine.split_block_size
    scheduler.otel_cache_replica_id = f"replica-{index}"
    _give_encoder_budget(scheduler, engine)
    hash_function = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
    init_none_hash(hash_function)
    hasher = get_request_block_hasher(
        hash_block,
        hash_function,
        **accepted(
            get_request_block_hasher,
            num_hash_lookahead_tokens=getattr(config, "num_hash_lookahead_tokens", 0),
        ),
    )
    return Replica(scheduler, hasher, 2 if engine.async_scheduling else 1)


def _give_encoder_budget(scheduler: Any, engine: Engine) -> None:
    """Let multimodal items be encoded: the budget follows from the model, and the lab's has no encoder."""
    scheduler.max_num_encoder_input_tokens = engine.max_num_batched_tokens
    scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(cache_size=POSITIONS)


def _constructor(scheduler_class: type) -> Callable[..., Any]:
    """Return the constructor that names its parameters: the async scheduler passes them on as they come."""
    for kind in scheduler_class.__mro__:
        function = kind.__dict__.get("__init__")
        if function is not None and "vllm_config" in inspect.signature(function).parameters:
            return function  # type: ignore[no-any-return]
    raise LabError(f"{scheduler_class.__name__}.__init__ takes no vllm_config: the lab does not know this vLLM")


def _vllm_config(engine: Engine) -> Any:
    """Return vLLM's configuration; loads vLLM's general plugins, as every vLLM process does."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    write_config(Path(MODEL), engine.vocabulary, POSITIONS)
    interval = engine.prefix_cache_retention_interval
    settings: dict[str, Any] = {}
    # Without this field the interval is in the environment.
    if interval != "default" and "prefix_cache_retention_interval" in _field_names(EngineArgs):
        settings["prefix_cache_retention_interval"] = None if interval == "dense" else interval
    if engine.enable_mamba_shared_prefix_checkpoint:
        if "enable_mamba_shared_prefix_checkpoint" not in _field_names(EngineArgs):
            raise LabError("engine.enable_mamba_shared_prefix_checkpoint: this vLLM has no such setting; use false")
        settings["enable_mamba_shared_prefix_checkpoint"] = True
    config = EngineArgs(
        model=MODEL,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=True,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        speculative_config=_speculative_config(engine),
        async_scheduling=False,
        kv_transfer_config=transfer_config(engine),
        **settings,
    ).create_engine_config()
    # The CPU platform turns async scheduling off, because it has no second stream; the scheduler does not mind.
    config.scheduler_config.async_scheduling = engine.async_scheduling
    cache = config.cache_config
    sizes = engine.block_sizes()
    has_mamba = any(group.kind == "mamba" for group in engine.groups)
    cache.block_size = min(sizes)
    cache.mamba_block_size = (
        max(group.block_size or 0 for group in engine.group_list() if group.kind == "mamba") if has_mamba else None
    )
    cache.mamba_cache_mode = "align" if has_mamba else "none"
    cache.num_gpu_blocks = engine.num_gpu_blocks
    if hasattr(cache, "prefix_match_unit"):
        cache.prefix_match_unit = engine.prefix_match_unit
    elif engine.prefix_match_unit is not None:
        raise LabError("engine.prefix_match_unit: this vLLM has no such setting; use null")
    return config


def _speculative_config(engine: Engine) -> dict[str, Any] | None:
    speculative = engine.speculative
    if speculative is None:
        return None
    settings: dict[str, Any] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }
    if speculative.method == "ngram":
        settings |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return settings


def _kv_cache_config(engine: Engine, config: Any) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    drafts = config.speculative_config is not None and config.speculative_config.use_eagle()
    listed = engine.group_list()
    marked = {index for index, group in enumerate(listed) if group.draft}
    if drafts and not marked:
        # A drafter's layers are attention and come last.
        marked = set([index for index, group in enumerate(listed) if group.kind == "full_attention"][-1:])
    groups = []
    for index, group in enumerate(listed):
        spec = KVCacheGroupSpec([f"{group.kind}.{index}"], _group_spec(group, engine))
        if drafts and index in marked and hasattr(spec, "is_eagle_group"):
            spec.is_eagle_group = True
        groups.append(spec)
    return known(
        KVCacheConfig,
        num_blocks=engine.num_gpu_blocks,
        kv_cache_tensors=tensors(engine, [f"{group.kind}.{index}" for index, group in enumerate(listed)]),
        kv_cache_groups=groups,
        prefix_cache_retention_interval=getattr(config.cache_config, "prefix_cache_retention_interval", None),
    )


def _group_spec(group: Group, engine: Engine) -> Any:
    """Return vLLM's description of one group; the sizes of heads and states have no bearing on the scheduler."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    if group.kind == "mamba":
        return known(
            MambaSpec,
            block_size=group.block_size,
            shapes=((4, 128, 128),),
            dtypes=(torch.float32,),
            mamba_type="gdn_attention",
            mamba_cache_mode="align",
            num_speculative_blocks=engine.speculative.num_speculative_tokens if engine.speculative else 0,
        )
    attention = {"block_size": group.block_size, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
    if group.replay:
        return _replayed_spec(group)
    if group.kind == "sliding_window":
        return known(SlidingWindowSpec, sliding_window=group.window, **attention)
    return known(FullAttentionSpec, **attention)


def _replayed_spec(group: Group) -> Any:
    """Return the description of a window that is not cached: after a hit its last tokens are computed again."""
    import torch
    from vllm.v1 import kv_cache_interface

    kind = kv_cache_interface.SlidingWindowMLASpec
    if "bounded_replay" not in _field_names(kind):
        raise LabError("engine.groups: replay: this vLLM caches every window; replay came with 0.31")
    return known(
        kind,
        block_size=group.block_size,
        num_kv_heads=1,
        head_size=64,
        dtype=torch.bfloat16,
        sliding_window=group.window,
        bounded_replay=True,
    )


def _block_sizes(engine: Engine, kv_cache: Any, config: Any) -> tuple[int, int]:
    """Return scheduler block and hash block, in tokens, as this vLLM resolves them."""
    from vllm.v1.core import kv_cache_utils

    resolve = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)
    if resolve is not None:
        scheduler_block, hash_block = resolve(kv_cache, config)
        return scheduler_block, hash_block
    sizes = engine.block_sizes()
    return math.lcm(*sizes), engine.prefix_match_unit or math.gcd(*sizes)


def _field_names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
