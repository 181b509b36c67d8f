"""The one place where a failure of the instrumentation ends: counted, logged once per place, never raised."""

import logging
from collections import Counter

# Below vLLM's own logger, so that it is shown as vLLM's log is configured.
_logger = logging.getLogger("vllm.otel_cache")
_counts: Counter[str] = Counter()


def swallow(where: str, error: BaseException) -> None:
    """Count `error` under `where`; log the first of each place, with its type and text."""
    _counts[where] += 1
    if _counts[where] == 1:
        _logger.warning(
            "otel-cache: %s failed (%s: %s); vLLM goes on, further failures of this kind are only counted",
            where,
            type(error).__name__,
            error,
        )


def failures() -> dict[str, int]:
    """Return how often each place has failed in this process."""
    return dict(_counts)
