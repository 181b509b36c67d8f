"""What is loaded into vLLM's processes is light: no polars, no click, no OpenTelemetry SDK."""

import subprocess
import sys

BLOCKED = ("polars", "click", "rich", "grpc", "opentelemetry", "yaml", "analyzers")


def test_the_plugin_loads_without_the_analyzers_libraries() -> None:
    """Everything that runs inside vLLM imports with these blocked."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"
        "import otel_cache.plugin, otel_cache.instrumentor, otel_cache.pipeline.sender, otel_cache.bindings.pack\n"
        "otel_cache.plugin.register()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
