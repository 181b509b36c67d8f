"""The entry point that vLLM calls in each of its processes (group `vllm.general_plugins`)."""

import logging
import multiprocessing
import os

from otel_cache.config import ENABLED, read_config, unclear
from otel_cache.faults import swallow

# Below vLLM's own logger, so that it is shown as vLLM's log is configured.
_logger = logging.getLogger("vllm.otel_cache")


def register() -> None:
    """Instrument vLLM in this process where the environment asks for it. Never raises; off means not patched."""
    try:
        config = read_config()
        if not config.enabled:
            _say_unclear()
            return
        from otel_cache.instrumentor import install  # nothing is loaded while it is off

        install(config)
    except Exception as error:
        swallow("instrumenting vLLM", error)


def _say_unclear() -> None:
    value = os.environ.get(ENABLED)
    # vLLM's further processes are children of the first, which has said it.
    if unclear(value) and multiprocessing.parent_process() is None:
        _logger.warning(
            "otel-cache: %s=%s is neither true nor false: the prefix cache is not traced; set it to true",
            ENABLED,
            value,
        )
