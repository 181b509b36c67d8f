"""One table of targets in vLLM, applied as a whole and undone as a whole."""

import atexit
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from otel_cache.bindings import hooks
from otel_cache.bindings.probe import find_class, find_method, subclasses
from otel_cache.bindings.replica import Replica, attach
from otel_cache.bindings.settings import is_tested, vllm_version
from otel_cache.config import Config, read_config
from otel_cache.errors import BindingError
from otel_cache.faults import swallow
from otel_cache.fingerprints import key_id, load_key
from otel_cache.package import VERSION
from otel_cache.pipeline.sender import Pipeline

_logger = logging.getLogger("vllm.otel_cache")

Wrap = Callable[[Callable[..., Any], hooks.Context], Callable[..., Any]]


@dataclass(frozen=True)
class Target:
    """A method of vLLM and its hook.

    Attributes:
        hook: name of the hook, by which it can be left out.
        wrap: makes the wrapper.
        required: without it nothing is patched; the others are left out where a version lacks them.
        every_subclass: wrap it wherever a subclass defines it.

    """

    hook: str
    module: str
    owner: str
    method: str
    wrap: Wrap
    required: bool = True
    every_subclass: bool = False


_CORE = "vllm.v1.core."
TARGETS = (
    Target("schedule", _CORE + "sched.scheduler", "Scheduler", "schedule", hooks.schedule),
    Target("update", _CORE + "sched.scheduler", "Scheduler", "update_from_output", hooks.update),
    Target("lookup", _CORE + "kv_cache_manager", "KVCacheManager", "get_computed_blocks", hooks.lookup),
    Target(
        "finder", _CORE + "single_type_kv_cache_manager", "SingleTypeKVCacheManager", "find_longest_cache_hit",
        hooks.finder, every_subclass=True,
    ),
    Target("store", _CORE + "block_pool", "BlockPool", "cache_full_blocks", hooks.store),
    Target("partial_store", _CORE + "block_pool", "BlockPool", "cache_partial_block", hooks.partial_store, False),
    Target("evict", _CORE + "block_pool", "BlockPool", "get_new_blocks", hooks.evict),
    Target("reset", _CORE + "block_pool", "BlockPool", "reset_prefix_cache", hooks.reset),
    Target("shutdown", "vllm.v1.engine.core", "EngineCore", "shutdown", hooks.shutdown, required=False),
)  # fmt: skip

_pipeline: Pipeline | None = None
_undo: list[tuple[type, str, Any]] = []


def install(config: Config | None = None) -> list[str]:
    """Patch vLLM in this process, once; return the names of the patched methods.

    Every target is probed before the first is patched: vLLM is patched as a whole or left as it is.

    Raises:
        BindingError: this vLLM lacks a method or a parameter that is required.
        UsageError: the fingerprint key cannot be read.

    """
    global _pipeline
    if _undo:
        return installed()
    settings = config or read_config()
    key = load_key(settings)
    name = key_id(key)
    pipeline = _pipeline or Pipeline(read_config)

    def make_replica(scheduler: Any) -> Replica:
        return attach(scheduler, settings.replica_id, key, name)

    context = hooks.Context(emit=pipeline.push, flush=pipeline.flush, attach=make_replica)
    patches = [patch for target in _enabled(settings) for patch in _probe(target, context)]
    for owner, method, wrapped in patches:
        _undo.append((owner, method, vars(owner)[method]))
        setattr(owner, method, wrapped)
    if _pipeline is None:
        atexit.register(pipeline.close)
        _pipeline = pipeline
    version = vllm_version()
    if is_tested(version):
        _logger.info("otel-cache %s: traces the prefix cache of vLLM %s", VERSION, version)
    else:
        _logger.warning("otel-cache: vLLM %s is untested; its methods passed the probes and are patched", version)
    return installed()


def uninstall() -> None:
    """Give vLLM its own methods back and send what was captured."""
    while _undo:
        owner, method, original = _undo.pop()
        setattr(owner, method, original)
    shutdown()


def shutdown() -> None:
    """Send what was captured and close the connection; the next event opens one as the environment then says."""
    if _pipeline is not None:
        _pipeline.close()


def installed() -> list[str]:
    """Return the methods of vLLM that are patched in this process, as Class.method."""
    return [f"{owner.__name__}.{method}" for owner, method, _ in _undo]


@dataclass(frozen=True)
class Verdict:
    """What the probes say of a target; `problem` is empty where it would be patched."""

    hook: str
    method: str
    required: bool
    problem: str


def examine() -> list[Verdict]:
    """Probe every target, those of disabled hooks included, and patch nothing."""
    context = hooks.Context(emit=lambda *_: None, flush=lambda: None, attach=_no_replica)
    verdicts = []
    for target in TARGETS:
        problem = ""
        try:
            _patches(target, context)
        except BindingError as error:
            problem = str(error)
        verdicts.append(Verdict(target.hook, f"{target.owner}.{target.method}", target.required, problem))
    return verdicts


def _no_replica(scheduler: Any) -> Replica:
    raise BindingError("nothing is patched: no scheduler is to be seen")


def _enabled(settings: Config) -> list[Target]:
    return [target for target in TARGETS if target.hook not in settings.disabled_hooks]


def _probe(target: Target, context: hooks.Context) -> list[tuple[type, str, Any]]:
    try:
        return _patches(target, context)
    except BindingError as error:
        if target.required:
            raise
        swallow(f"the probe of {target.owner}.{target.method}", error)
        return []


def _patches(target: Target, context: hooks.Context) -> list[tuple[type, str, Any]]:
    owner = find_class(target.module, target.owner)
    if not target.every_subclass:
        return [(owner, target.method, _wrapped(find_method(owner, target.method), target, context))]
    owners = [cls for cls in subclasses(owner) if _concrete(vars(cls).get(target.method))]
    if not owners:
        raise BindingError(f"vLLM's {owner.__name__} and its subclasses have no method {target.method}")
    return [(cls, target.method, _wrapped(vars(cls)[target.method], target, context)) for cls in owners]


def _concrete(method: Any) -> bool:
    function = getattr(method, "__func__", method)
    return function is not None and not getattr(function, "__isabstractmethod__", False)


def _wrapped(method: Any, target: Target, context: hooks.Context) -> Any:
    function = getattr(method, "__func__", method)
    wrapper = wraps(function)(target.wrap(function, context))
    return type(method)(wrapper) if isinstance(method, classmethod | staticmethod) else wrapper
