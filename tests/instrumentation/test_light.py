"""What is loaded into vLLM's processes is light: no polars, no click, no OpenTelemetry SDK."""

import os
import subprocess
import sys

import pytest

from otel_cache.config import ENABLED

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


@pytest.mark.parametrize(
    ("value", "said"),
    [*((value, 1) for value in ("1", "0", "yes", "on", "ture")), ("false", 0), ("FALSE", 0), ("", 0), (" ", 0)],
)
def test_what_is_neither_true_nor_false_is_said_once(value: str, said: int) -> None:
    """By the first process alone, not by its children."""
    code = (
        "import multiprocessing, otel_cache.plugin as plugin\n"
        "if __name__ == '__main__':\n"
        "    plugin.register()\n"
        "    child = multiprocessing.get_context('fork').Process(target=plugin.register)\n"
        "    child.start(); child.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | {ENABLED: value}
    )
    assert done.returncode == 0
    assert done.stderr.count(f"{ENABLED}={value} is neither true nor false") == said
    assert len(done.stderr.splitlines()) == said
