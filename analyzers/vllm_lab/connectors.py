"""KV connectors in the lab: their settings, and the worker's part of their transfers. Runs in the lab's child process.

A connector has a half in the scheduler, which is vLLM's own here, and a half in each worker, which moves the data.
Without a worker nothing is moved: every transfer is done at once.
"""

import importlib
import sys
from typing import Any

from analyzers.vllm_lab.scenario import Connector, Engine
from otel_cache.errors import LabError

OFFLOAD = "SimpleCPUOffloadConnector"
BLOCK_BYTES = 1 << 12
"""Of a block in the pools of CPU offloading, which are sized in bytes; any size serves."""


def transfer_config(engine: Engine) -> Any:
    """Return vLLM's configuration of the scenario's connector; None where it has none.

    Raises:
        LabError: the connector's class cannot be found.

    """
    from vllm.config import KVTransferConfig

    if engine.cpu_offload is not None:
        extra: dict[str, Any] = {
            "cpu_bytes_to_use": engine.cpu_offload.blocks * BLOCK_BYTES * len(engine.group_list()),
            "lazy_offload": engine.cpu_offload.lazy,
        }
        return KVTransferConfig(kv_connector=OFFLOAD, kv_role="kv_both", kv_connector_extra_config=extra)
    match engine.connector:
        case None:
            return None
        case Connector() as own:
            _check_class(own)
            return KVTransferConfig(
                kv_connector=own.class_,
                kv_role="kv_both",
                kv_connector_module_path=own.module_path,
                kv_connector_extra_config=dict(own.extra),
            )
        case "decode_bench":
            return KVTransferConfig(kv_connector="DecodeBenchConnector", kv_role="kv_both")


def _check_class(own: Connector) -> None:
    if own.folder is not None and own.folder not in sys.path:
        sys.path.insert(0, own.folder)
    try:
        module = importlib.import_module(own.module_path)
    except ImportError as error:
        raise LabError(
            f"engine.connector.module_path: {own.module_path} cannot be imported ({error}); name its folder in "
            "engine.connector.folder"
        ) from error
    if not isinstance(getattr(module, own.class_, None), type):
        raise LabError(f"engine.connector.class: {own.module_path} has no class {own.class_}")


def tensors(engine: Engine, layers: list[str]) -> list[Any]:
    """Return the tensors of the pool, by whose bytes CPU offloading sizes its own; nobody else looks at them."""
    if engine.cpu_offload is None:
        return []
    from vllm.v1.kv_cache_interface import KVCacheTensor

    size = engine.num_gpu_blocks * BLOCK_BYTES
    # Up to 0.29 or so a tensor names the layers that share it; later ones say how its layers are laid out.
    laid_out = "layers" in KVCacheTensor.__dataclass_fields__
    layout = {"layers": [], "layer_stride": size, "block_stride": BLOCK_BYTES} if laid_out else {"shared_by": []}
    return [KVCacheTensor(size=size, **{**layout, next(iter(layout)): [layer]}) for layer in layers]


def transferred(step: Any) -> Any:
    """Return what the worker says of the transfers that `step` asks for: all are done. None: it asks for none."""
    from vllm.v1.outputs import KVConnectorOutput

    wanted = getattr(step, "kv_connector_metadata", None)
    if wanted is None or not hasattr(wanted, "store_event"):
        return None
    from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

    stored = {wanted.store_event: 1} if wanted.store_event >= 0 else {}
    loaded = set(wanted.load_event_to_reqs[wanted.load_event]) if wanted.load_event >= 0 else None
    return KVConnectorOutput(
        finished_recving=loaded, kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(completed_store_events=stored)
    )
