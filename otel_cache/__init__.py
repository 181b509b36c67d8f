"""OpenTelemetry tracing of vLLM's prefix cache: what runs in vLLM's processes, and the sidecar that exports it."""

from otel_cache.package import VERSION as __version__

__all__ = ["__version__"]
