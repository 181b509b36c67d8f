"""A program that loads vLLM's plugins as vLLM does, here and in a spawned child; prints what is patched in each."""

import json
import multiprocessing
import os
import sys


def patched() -> list[str]:
    """Return the methods of vLLM that are patched once its plugins are loaded."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    if "otel_cache.instrumentor" not in sys.modules:
        return []
    from otel_cache.instrumentor import installed

    return installed()


def main() -> dict[str, list[str]]:
    """Return the patched methods of both processes; the child begins anew, as vLLM's engine core does."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(patched)
    return {"parent": patched(), "child": child}


if __name__ == "__main__":
    answer = os.dup(1)
    os.dup2(2, 1)
    os.write(answer, json.dumps(main()).encode())
