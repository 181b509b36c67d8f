"""A KV connector for tests, named by `kv_connector_module_path`: it claims to hold every prompt up to a position.

It takes hits on which the groups disagree, as connectors do that transfer the rest (vLLM's NIXL connector is one), so
that vLLM looks up by `get_computed_blocks_for_connector`. Nothing is transferred: without workers there is no data.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class ExternalConnector(KVConnectorBase_V1, SupportsHMA):
    """Holds the first `upto` tokens of every prompt, but for the last token; by default nothing.

    With `only` it does so for the requests alone whose id begins so.
    """

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Ask for the hit of the attention group alone."""
        return True

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many tokens beyond those computed it would load, at once."""
        settings = self._vllm_config.kv_transfer_config
        upto = int(settings.get_from_extra_config("upto", 0))
        if not request.request_id.startswith(settings.get_from_extra_config("only", "")):
            upto = 0
        return max(min(upto, request.num_tokens - 1) - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take note of the blocks to load into: there is nothing to load."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return what the workers need to know: nothing."""
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Keep no block of a finished request."""
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """In a worker; there is none."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """In a worker; there is none."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """In a worker; there is none."""

    def wait_for_save(self) -> None:
        """In a worker; there is none."""
