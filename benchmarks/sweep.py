"""What a setting of `otel-cache lab sweep` costs beside one `otel-cache lab run`. Prints a JSON object.

`python benchmarks/sweep.py [--requests N] [--vllm DIR]`. A whole trace on a hybrid engine: a replay, and the sweep of
eight retention intervals in one process and in two. Each is the command that a user types, with all the processes that
it starts. Seconds of CPU compare also where the machine has other work, those on the clock do not;
`peak_mb` is the memory of the largest process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from capture import trace

SETTINGS = "0,1600,3200,6400,12800,25600,51200,dense"
ENGINE = """\
engine:
  block_size: 1600
  prefix_cache_retention_interval: 0
  max_num_batched_tokens: 8192
  num_gpu_blocks: 4000
  speculative: {method: mtp, num_speculative_tokens: 2}
  groups:
    - {kind: mamba, layers: 3}
    - {kind: full_attention}
output_tokens: 1
"""


def measure(arguments: list[str]) -> dict[str, float]:
    """Run a command of otel-cache to its end; its output goes nowhere."""
    start = time.perf_counter()
    command = [sys.executable, "-c", "from analyzers.cli.main import main; main()", *arguments]
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"otel-cache {' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}")
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - start,
        "peak_mb": usage.ru_maxrss / 1024,
    }


def main() -> None:
    """Measure the replay and the sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, help="the first so many of the trace  [all]")
    parser.add_argument("--vllm", help="folder of another vLLM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="otel-cache-bench-") as folder:
        engine = Path(folder) / "engine.yaml"
        engine.write_text(ENGINE + (f"requests: {options.requests}\n" if options.requests else ""))
        common = [str(trace()), "--engine", str(engine), *(["--vllm", options.vllm] if options.vllm else [])]
        replay = ["lab", "run", *common, "--out", f"{folder}/spans.jsonl"]
        sweep = ["lab", "sweep", *common, "--retention-interval", SETTINGS, "--processes"]
        runs = {"replay": replay, "sweep_1": [*sweep, "1"], "sweep_2": [*sweep, "2"]}
        found = {}
        for name, arguments in runs.items():
            found[name] = measure(arguments)
            print(f"  {name:12} {json.dumps(found[name])}", file=sys.stderr)
    print(json.dumps({"settings": len(SETTINGS.split(",")), **found}))


if __name__ == "__main__":
    main()
