"""What the benchmarks promise of the scheduler's thread, and that what they write is what `make bench` says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import MEASUREMENTS

ROOT = Path(__file__).parents[1]


@pytest.mark.vllm
def test_hot_path() -> None:
    """A record costs the scheduler's thread a fifteenth of a span of the SDK, or less: a ratio within one run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "hot_path.py"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    flat = MEASUREMENTS["hot_path"](json.loads(done.stdout))
    assert flat["hot_path_ratio_lookup"] >= 15, flat
    assert flat["hot_path_ratio_step"] >= 15, flat
