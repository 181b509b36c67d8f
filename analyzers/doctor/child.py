"""The process in which doctor looks at a vLLM: prints one JSON object. `python -P -m analyzers.doctor.child`."""

import importlib.metadata
import importlib.util
import json
import os
from typing import Any

GROUP = "vllm.general_plugins"
REGISTER = "otel_cache.plugin:register"


def look() -> dict[str, Any]:
    """Return version and place of vLLM, whether it would find the plugin, and what the probes say."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return {"installed": False}
    found: dict[str, Any] = {"installed": True, "origin": spec.origin}
    found["plugin"] = REGISTER in {point.value for point in importlib.metadata.entry_points(group=GROUP)}
    try:
        from otel_cache.bindings.settings import is_tested, vllm_version
        from otel_cache.instrumentor import TARGETS, examine

        found["hooks"] = [target.hook for target in TARGETS]
        found["version"] = vllm_version()
        found["tested"] = is_tested(found["version"])
        found["verdicts"] = [vars(verdict) for verdict in examine()]
    except Exception as error:
        # Whatever a vLLM raises at its import is what is to be told.
        found["error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    # vLLM writes to stdout as soon as it is imported; the answer goes out alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    os.write(answer, json.dumps(look()).encode())
