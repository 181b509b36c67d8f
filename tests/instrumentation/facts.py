# ruff: noqa: E402 (the environment and the streams must be as they are before vLLM is imported)
"""Run in a process of its own, with the vLLM of one version: prints, as JSON, what patching does and does not.

    python facts.py SOCKET

SOCKET is that of a sidecar; what the scenario below makes of spans goes there.
"""

import json
import os
import random
import sys
from typing import Any

from analyzers.vllm_lab.run import ENVIRONMENT

# vLLM logs to stdout as soon as it is imported; the answer goes out alone.
ANSWER = os.dup(1)
os.dup2(2, 1)
os.environ.update(ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO"})
os.environ.pop("OTEL_PYTHON_VLLM_CACHE_ENABLED", None)
os.environ["OTEL_PYTHON_VLLM_CACHE_SOCKET"] = sys.argv[1]

import msgspec
import vllm
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, MambaManager, SlidingWindowManager

from analyzers.vllm_lab.driver import run_scenario
from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache import plugin
from otel_cache.faults import failures

METHODS: list[tuple[type, str]] = [
    (Scheduler, "schedule"),
    (Scheduler, "update_from_output"),
    (KVCacheManager, "get_computed_blocks"),
    (BlockPool, "cache_full_blocks"),
    (BlockPool, "cache_partial_block"),
    (BlockPool, "get_new_blocks"),
    (BlockPool, "reset_prefix_cache"),
    (FullAttentionManager, "find_longest_cache_hit"),
    (MambaManager, "find_longest_cache_hit"),
    (SlidingWindowManager, "find_longest_cache_hit"),
]
ORIGINALS = [vars(owner)[name] for owner, name in METHODS]
SCENARIO = parse_scenario(
    {
        "engine": {
            "block_size": 160,
            "num_gpu_blocks": 40,
            "speculative": {"method": "mtp", "num_speculative_tokens": 2},
            "groups": [{"kind": "mamba", "layers": 2}, {"kind": "full_attention"}],
        },
        "requests": [
            {"id": "a", "prompt": [{"segment": "a", "tokens": 1500}], "output_tokens": 200, "times": 3},
            {"id": "b", "prompt": [{"segment": "b", "tokens": 1700}], "output_tokens": 5, "times": 2},
            {"id": "c", "prompt": [{"segment": "a", "tokens": 1500}], "output_tokens": 5, "with": "b"},
        ],
    }
)


def untouched() -> bool:
    """Whether all methods are vLLM's own objects."""
    return all(vars(owner)[name] is original for (owner, name), original in zip(METHODS, ORIGINALS, strict=True))


def results() -> Any:
    """Return what vLLM says of the scenario."""
    return msgspec.to_builtins(run_scenario(SCENARIO))


def main() -> dict[str, Any]:
    """Return the facts."""
    facts: dict[str, Any] = {"version": vllm.__version__}
    plugin.register()
    facts["off leaves vLLM alone"] = untouched() and "otel_cache.instrumentor" not in sys.modules
    bare = results()

    os.environ["OTEL_PYTHON_VLLM_CACHE_ENABLED"] = "true"
    plugin.register()
    plugin.register()
    from otel_cache import instrumentor

    facts["patched"] = instrumentor.installed()
    facts["every method is wrapped once"] = all(
        getattr(vars(owner)[name], "__wrapped__", None) is not None
        and not hasattr(getattr(vars(owner)[name], "__func__", vars(owner)[name]).__wrapped__, "__wrapped__")
        for owner, name in METHODS
    )
    random.seed(1)  # as vLLM seeds every rank alike
    facts["results are the same"] = results() == bare
    facts["failures of a sound run"] = failures()

    child = os.fork()
    if child == 0:
        random.seed(1)
        same = results() == bare
        instrumentor.shutdown()
        os._exit(0 if same and not failures() else 1)
    facts["a forked child records too"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    facts["the parent goes on"] = results() == bare
    instrumentor.uninstall()
    facts["undone"] = untouched()

    facts["faults"] = faults(bare)
    facts["missing"] = missing(instrumentor)
    facts["a new parameter is no obstacle"] = new_parameter(instrumentor)
    return facts


def faults(bare: Any) -> dict[str, Any]:
    """Let everything of ours fail: vLLM's results must not change."""
    from otel_cache import instrumentor
    from otel_cache.bindings import hooks, lookup_hooks, pack, pool_hooks

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken on purpose")

    found = {}
    parts = {
        hooks: ("_step",),
        lookup_hooks: ("_emit", "_stored_above", "_hit_of"),
        pool_hooks: ("_keys_of", "_emit_removed"),
        pack: ("announce", "lookup", "repeated", "store", "partial_store", "evict", "step", "done", "finished", "reset"),
    }
    for module, names in parts.items():
        for name in names:
            original = getattr(module, name)
            setattr(module, name, broken)
            try:
                instrumentor.install()
                found[name] = results() == bare
            except Exception as error:
                found[name] = repr(error)
            finally:
                setattr(module, name, original)
                instrumentor.uninstall()
    return found


def missing(instrumentor: Any) -> dict[str, Any]:
    """Rename a method: nothing may be patched, and the message names it."""
    original = KVCacheManager.get_computed_blocks
    del KVCacheManager.get_computed_blocks
    try:
        instrumentor.install()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    else:
        message = "patched all the same"
    installed = instrumentor.installed()
    plugin.register()
    KVCacheManager.get_computed_blocks = original
    return {"message": message, "installed": installed, "untouched": untouched()}


def new_parameter(instrumentor: Any) -> bool:
    """Give a method one more parameter, in front of the others: names decide, not places."""
    original = vars(BlockPool)["cache_full_blocks"]

    def newer(self: Any, priority: int = 0, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    import inspect

    given = list(inspect.signature(original).parameters.values())
    extra = inspect.Parameter("priority", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    newer.__signature__ = inspect.Signature([given[0], extra, *given[1:]])  # type: ignore[attr-defined]
    BlockPool.cache_full_blocks = newer
    try:
        instrumentor.install()
        return "BlockPool.cache_full_blocks" in instrumentor.installed()
    finally:
        instrumentor.uninstall()
        BlockPool.cache_full_blocks = original


if __name__ == "__main__":
    os.write(ANSWER, json.dumps(main()).encode())
