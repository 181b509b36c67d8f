"""What the facts are found with: scenarios that go through every hook, and what vLLM says of them."""

from pathlib import Path
from typing import Any

import msgspec
from vllm.v1.worker.worker_base import WorkerWrapperBase

from analyzers.vllm_lab.driver import _Driver, run_scenario
from analyzers.vllm_lab.engine import build_replicas
from analyzers.vllm_lab.scenario import Scenario, parse_scenario
from otel_cache.bindings.replica import ATTRIBUTE

SIGNALS = Path(__file__).parents[1] / "signals"
HYBRID = [{"kind": "mamba", "layers": 2}, {"kind": "full_attention"}]
CONNECTOR = {"class": "ExternalConnector", "module_path": "external", "folder": str(SIGNALS), "extra": {"upto": 1400}}


def prompt(*parts: tuple[str, int]) -> list[dict[str, Any]]:
    """Return a prompt of these (segment, tokens)."""
    return [{"segment": segment, "tokens": tokens} for segment, tokens in parts]


SCENARIOS: list[Scenario] = [
    parse_scenario(scenario)
    for scenario in (
        {  # drafts, evictions, preemptions, stores of decoded tokens
            "engine": {
                "block_size": 160, "num_gpu_blocks": 40, "groups": HYBRID,
                "speculative": {"method": "mtp", "num_speculative_tokens": 2, "accepted_tokens": 1},
            },
            "requests": [
                {"id": "a", "prompt": prompt(("a", 1500)), "output_tokens": 90, "times": 2},
                {"id": "b", "prompt": prompt(("b", 1700)), "output_tokens": 5},
                {"id": "c", "prompt": prompt(("a", 1500)), "output_tokens": 5, "with": "b"},
            ],
        },
        {  # keys inside a block, a reset, an abort, keys of every kind, a skipped lookup
            "engine": {"block_size": 160, "prefix_match_unit": 16, "groups": HYBRID},
            "requests": [
                {"id": "d", "prompt": prompt(("d", 900)), "cache_salt": "s", "lora": "l", "times": 2},
                {"id": "e", "prompt": prompt(("d", 900)), "items": [{"content": "i", "offset": 200, "tokens": 50}]},
                {"id": "f", "prompt": prompt(("d", 900)), "reset": True, "output_tokens": 50, "abort_after": 5},
                {"id": "g", "prompt": prompt(("d", 900)), "skip_prefix_cache": True},
            ],
        },
        {  # a connector that continues where the groups disagree
            "engine": {"block_size": 160, "groups": HYBRID, "connector": CONNECTOR},
            "requests": [
                {"id": "h", "prompt": prompt(("h", 1500))},
                {"id": "i", "prompt": prompt(("h", 1000), ("i", 500)), "times": 2},
            ],
        },
    )
]  # fmt: skip


class _ForwardPass:
    """The lab's forward pass, as a worker that vLLM's own wrapper calls."""

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver

    def execute_model(self, scheduler_output: Any) -> Any:
        return _execute(self._driver, scheduler_output)


_execute = _Driver._execute


def _through_wrapper(driver: _Driver, step: Any) -> Any:
    wrapper = driver.__dict__.get("wrapper")
    if wrapper is None:
        wrapper = driver.__dict__["wrapper"] = WorkerWrapperBase()
        wrapper.worker = _ForwardPass(driver)
        wrapper.mm_receiver_cache = None
    return wrapper.execute_model(step)


_Driver._execute = _through_wrapper  # type: ignore[method-assign]


def results() -> Any:
    """Return what vLLM says of the scenarios: of every request, and a digest of all that its schedulers returned."""
    return [msgspec.to_builtins(run_scenario(scenario)) for scenario in SCENARIOS]


def refused_allocation() -> bool:
    """Ask a pool for more blocks than it has; whether vLLM refuses, and our replica does not go on waiting for them."""
    scheduler = build_replicas(SCENARIOS[0].engine, 1)[0].scheduler
    scheduler.schedule()
    pool = scheduler.kv_cache_manager.block_pool
    try:
        pool.get_new_blocks(pool.num_gpu_blocks + 1)
    except ValueError:
        return getattr(pool, ATTRIBUTE).taking is None
    return False
