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

import vllm
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, MambaManager, SlidingWindowManager
from workload import refused_allocation, results

from otel_cache import plugin
from otel_cache.faults import failures

METHODS: list[tuple[type, str]] = [
    (Scheduler, "schedule"),
    (Scheduler, "update_from_output"),
    (KVCacheManager, "get_computed_blocks"),
    (BlockPool, "cache_full_blocks"),
    (BlockPool, "cache_partial_block"),
    (BlockPool, "get_new_blocks"),
    (FreeKVCacheBlockQueue, "popleft_n"),
    (BlockPool, "reset_prefix_cache"),
    (FullAttentionManager, "find_longest_cache_hit"),
    (MambaManager, "find_longest_cache_hit"),
    (SlidingWindowManager, "find_longest_cache_hit"),
]
ORIGINALS = [vars(owner)[name] for owner, name in METHODS]


def untouched() -> bool:
    """Whether all methods are vLLM's own objects."""
    return all(vars(owner)[name] is original for (owner, name), original in zip(METHODS, ORIGINALS, strict=True))


def main() -> dict[str, Any]:
    """Return the facts."""
    facts: dict[str, Any] = {"version": vllm.__version__}
    plugin.register()
    facts["off leaves vLLM alone"] = untouched() and "otel_cache.instrumentor" not in sys.modules
    bare = results()

    os.environ["OTEL_PYTHON_VLLM_CACHE_ENABLED"] = "true"
    plugin.register()
    plugin.register()
    import breakage

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
    facts["a refused allocation leaves no mark"] = refused_allocation()

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

    facts["faults"] = breakage.faults(results, bare)
    facts["faults of getters"] = breakage.getters(results, bare)
    facts["renamed"] = breakage.renamed()
    facts["new parameters"] = breakage.new_parameters(results, bare)
    facts["everything is there again"] = untouched()
    return facts


if __name__ == "__main__":
    os.write(ANSWER, json.dumps(main()).encode())
