"""The entry point that vLLM calls in each of its processes (group `vllm.general_plugins`)."""

from otel_cache.config import read_config
from otel_cache.faults import swallow


def register() -> None:
    """Instrument vLLM in this process where the environment asks for it. Never raises; off means not patched."""
    try:
        config = read_config()
        if not config.enabled:
            return
        from otel_cache.instrumentor import install  # nothing is loaded while it is off

        install(config)
    except Exception as error:
        swallow("instrumenting vLLM", error)
