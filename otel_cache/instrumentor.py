"""One table of targets in vLLM, applied as a whole and undone as a whole."""

import atexit
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import ref

from otel_cache.bindings import hooks, lookup_hooks, pool_hooks
from otel_cache.bindings.context import Context
from otel_cache.bindings.probe import find_class, find_method, subclasses
from otel_cache.bindings.replica import Replica, attach, employ
from otel_cache.bindings.settings import is_tested, vllm_version
from otel_cache.config import Config, read_config
from otel_cache.errors import BindingError
from otel_cache.faults import swallow
from otel_cache.fingerprints import Printer
from otel_cache.keys import key_id, load_key
from otel_cache.package import VERSION
from otel_cache.pipeline.destination import describe_destination
from otel_cache.pipeline.sender import Pipeline

_logger = logging.getLogger("vllm.otel_cache")

Wrap = Callable[[Callable[..., Any], Context], Callable[..., Any]]


@dataclass(frozen=True)
class Target:
    """A method of vLLM and its hook.

    Attributes:
        hook: name of the hook, by which it can be left out.
        wrap: makes the wrapper.
        required: without it nothing is patched; the others are left out where a version lacks them.
        every_subclass: wrap it wherever a subclass defines it.
        takes_over: hook of a method in the place of which some versions call this one; where there is that method,
            this one is left alone.

    """

    hook: str
    module: str
    owner: str
    method: str
    wrap: Wrap
    required: bool = True
    every_subclass: bool = False
    takes_over: str = ""


_CORE = "vllm.v1.core."
_SCHEDULER = (_CORE + "sched.scheduler", "Scheduler")
_MANAGER = (_CORE + "kv_cache_manager", "KVCacheManager")
_POOL = (_CORE + "block_pool", "BlockPool")
TARGETS = (
    Target("schedule", *_SCHEDULER, "schedule", hooks.schedule),
    Target("update", *_SCHEDULER, "update_from_output", hooks.update),
    Target("finished", *_SCHEDULER, "_free_request", hooks.finished, required=False),
    Target("lookup", *_MANAGER, "get_computed_blocks", lookup_hooks.lookup),
    Target("connector_lookup", *_MANAGER, "get_computed_blocks_for_connector", lookup_hooks.lookup, required=False),
    Target(
        "per_group_lookup", _CORE + "kv_cache_coordinator", "HybridKVCacheCoordinator",
        "find_longest_cache_hit_per_group", lookup_hooks.per_group_lookup, required=False,
        takes_over="connector_lookup",
    ),
    Target(
        "finder", _CORE + "single_type_kv_cache_manager", "SingleTypeKVCacheManager", "find_longest_cache_hit",
        lookup_hooks.finder, every_subclass=True,
    ),
    Target("store", *_POOL, "cache_full_blocks", pool_hooks.store),
    Target("partial_store", *_POOL, "cache_partial_block", pool_hooks.partial_store, required=False),
    Target("evict", *_POOL, "get_new_blocks", pool_hooks.evict),
    Target("evict", _CORE + "kv_cache_utils", "FreeKVCacheBlockQueue", "popleft_n", pool_hooks.take),
    Target("withdraw", *_POOL, "evict_blocks", pool_hooks.withdraw, required=False),
    Target("reset", *_POOL, "reset_prefix_cache", pool_hooks.reset),
    Target("shutdown", "vllm.v1.engine.core", "EngineCore", "shutdown", hooks.shutdown, required=False),
    Target(
        "execute", "vllm.v1.worker.worker_base", "WorkerWrapperBase", "execute_model", hooks.execute, required=False
    ),
)  # fmt: skip

_pipeline: Pipeline | None = None
_undo: list[tuple[type, str, Any]] = []
_replicas: list[ref[Replica]] = []


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
    pipeline = _pipeline or Pipeline(read_config, _repeat_nothing)
    printer = Printer(key)

    def make_replica(scheduler: Any) -> Replica:
        replica = attach(scheduler, settings.replica_id, key, name, printer)
        _replicas.append(ref(replica))
        return replica

    context = Context(emit=pipeline.push, flush=pipeline.flush, gate=pipeline.gate, attach=make_replica, employ=employ)
    patches = [patch for target in _enabled(settings) for patch in _probe(target, context)]
    for owner, method, wrapped in patches:
        _undo.append((owner, method, vars(owner)[method]))
        setattr(owner, method, wrapped)
    if _pipeline is None:
        atexit.register(pipeline.close)
        _pipeline = pipeline
    version = vllm_version()
    if not is_tested(version):
        _logger.warning("otel-cache: vLLM %s is untested; its methods passed the probes and are patched", version)
    where = describe_destination(settings)
    _logger.info("otel-cache %s: traces the prefix cache of vLLM %s; %s", VERSION, version, where)
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


def flush(seconds: float) -> None:
    """Send what was captured so far, within `seconds`: for programs that outrun the sender."""
    if _pipeline is not None:
        _pipeline.flush(seconds)


def _repeat_nothing() -> None:
    """Another sidecar is there: it is told of waiting requests' lookups as if they were new."""
    for reference in _replicas:
        replica = reference()
        for state in list(replica.requests.values()) if replica is not None else ():
            state.outcome = None


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
    context = Context(emit=lambda _: None, flush=lambda: None, gate=None, attach=_nothing, employ=_nothing)
    verdicts = []
    for target in TARGETS:
        if _left_alone(target):
            continue
        problem = ""
        try:
            _patches(target, context)
        except BindingError as error:
            problem = str(error)
        verdicts.append(Verdict(target.hook, f"{target.owner}.{target.method}", target.required, problem))
    return verdicts


def _nothing(*_: Any) -> Any:
    raise BindingError("nothing is patched: nothing is to be seen")


def _enabled(settings: Config) -> list[Target]:
    return [target for target in TARGETS if target.hook not in settings.disabled_hooks and not _left_alone(target)]


def _left_alone(target: Target) -> bool:
    """Return whether this version has another method in the place of the target's, or the target's in its place."""
    others = [each for each in TARGETS if each.hook == target.takes_over]
    if others:
        return all(map(_exists, others))
    heirs = [each for each in TARGETS if each.takes_over == target.hook]
    return bool(heirs) and not _exists(target) and all(map(_exists, heirs))


def _exists(target: Target) -> bool:
    try:
        find_method(find_class(target.module, target.owner), target.method)
    except BindingError:
        return False
    return True


def _probe(target: Target, context: Context) -> list[tuple[type, str, Any]]:
    try:
        return _patches(target, context)
    except BindingError as error:
        if target.required:
            raise
        swallow(f"the probe of {target.owner}.{target.method}", error)
        return []


def _patches(target: Target, context: Context) -> list[tuple[type, str, Any]]:
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


def _wrapped(method: Any, target: Target, context: Context) -> Any:
    function = getattr(method, "__func__", method)
    wrapper = wraps(function)(target.wrap(function, context))
    return type(method)(wrapper) if isinstance(method, classmethod | staticmethod) else wrapper
