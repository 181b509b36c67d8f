"""Run in a process of its own, with the vLLM of one version and its log at DEBUG: a scenario full of secrets.

python workload.py SCENARIO
"""

import json
import logging
import os
import sys
from pathlib import Path

from analyzers.vllm_lab.run import ENVIRONMENT

os.environ.update(ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "DEBUG"})

from analyzers.vllm_lab.driver import run_scenario
from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache import instrumentor


def main(path: str) -> None:
    """Run the scenario, send what was recorded, and print what vLLM said, without a secret."""
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s")
    ran = run_scenario(parse_scenario(json.loads(Path(path).read_bytes())))
    instrumentor.shutdown()
    print("hits", [sent.hit_tokens for sent in ran.requests])


if __name__ == "__main__":
    main(sys.argv[1])
