"""Says which vLLM the lab runs, after it has run: `python -m analyzers.vllm_lab.version [DIR]`."""

import sys
from pathlib import Path

from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.scenario import find_scenario, load_scenario
from otel_cache.errors import OtelCacheError


def main(arguments: list[str]) -> None:
    """Run a small scenario without the instrumentation and print vLLM's version."""
    folder = Path(arguments[0]) if arguments else None
    try:
        with LabWorker(folder, instrument=False) as worker:
            print(worker.run(load_scenario(find_scenario(Path("model_case")))).vllm_version)
    except OtelCacheError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
