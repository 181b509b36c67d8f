"""Makes vLLM's requests of a scenario's sendings. Runs in the lab's child process."""

from typing import Any

from analyzers.vllm_lab.engine import Replica, accepted
from analyzers.vllm_lab.scenario import LabRequest, Sending
from analyzers.vllm_lab.tokens import STOP, segment
from otel_cache.errors import LabError


class RequestMaker:
    """Makes the requests of one replica; adapters keep their number."""

    def __init__(self, replica: Replica, vocabulary: int) -> None:
        """Make requests for `replica` whose tokens lie below `vocabulary`."""
        self._hasher = replica.block_hasher
        self._vocabulary = vocabulary
        self._loras: dict[str, int] = {}

    def make(self, sending: Sending) -> Any:
        """Return vLLM's request.

        Raises:
            LabError: the sending asks for what this vLLM does not have.

        """
        from vllm import SamplingParams
        from vllm.v1.request import Request

        asked = sending.request
        sampling = {
            "max_tokens": asked.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "skip_reading_prefix_cache": asked.skip_prefix_cache or None,
            "stop_token_ids": None if asked.stop_after is None else [STOP],
        }
        arguments = {
            "request_id": sending.id,
            "prompt_token_ids": [
                token for part in asked.prompt for token in segment(part.segment, part.tokens, self._vocabulary)
            ],
            "sampling_params": SamplingParams(**sampling),
            "pooling_params": None,
            "eos_token_id": None,
            "mm_features": _features(asked) or None,
            "lora_request": self._lora(asked),
            "cache_salt": asked.cache_salt,
            "trace_headers": asked.trace_headers or None,
            "session_id": asked.session_id,
            "block_hasher": self._hasher,
        }
        taken = accepted(Request.__init__, **arguments)
        if asked.session_id is not None and "session_id" not in taken:
            raise LabError(f"the session_id of {sending.id}: this vLLM's requests have none; it came with 0.28")
        return Request(**taken)

    def _lora(self, asked: LabRequest) -> Any:
        if asked.lora is None:
            return None
        from vllm.lora.request import LoRARequest

        number = self._loras.setdefault(asked.lora, len(self._loras) + 1)
        return LoRARequest(lora_name=asked.lora, lora_int_id=number, lora_path=asked.lora_path or asked.lora)


def _features(asked: LabRequest) -> list[Any]:
    """Return what the API's multimodal processor makes of items; the pixels themselves have no bearing here."""
    if not asked.items:
        return []
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=item.content,
            mm_position=PlaceholderRange(offset=item.offset, length=item.tokens),
            mm_hash=item.content,
        )
        for item in asked.items
    ]
