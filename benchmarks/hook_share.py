"""The hooks' own time in the scheduler's thread, as a share of vLLM's in the same steps of the same process.

    python benchmarks/hook_share.py [--only 32000/16] [--steps 300]

Each hook is timed around, and the method that it wraps within. Nothing is packed or sent: what the thread that does so
costs besides is for `scheduler_overhead.py` to say. Prints a JSON object: by case, medians over the steps.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any

CALIBRATION = 5_000


class Meter:
    """Times what hooks take of themselves."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.own = 0.0
        self.calls = 0
        self._inner = 0.0

    def target(self, target: Any) -> Any:
        """Return `target` with its hook timed."""
        return replace(target, wrap=lambda original, context: self.timed(original, lambda f: target.wrap(f, context)))

    def timed(self, original: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
        """Return `wrap(original)`, timed without `original` and without the hooks within."""

        @wraps(original)
        def within(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._inner += perf_counter() - start

        hook = wrap(within)

        def around(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            start = perf_counter()
            try:
                return hook(*args, **kwargs)
            finally:
                self.own += perf_counter() - start - self._inner
                self.calls += 1
                self._inner = outer

        return around


def measure(case: str, steps: int) -> dict[str, float]:
    """Return what the hooks take of a step, what vLLM takes (us), and the share (%)."""
    from benchmarks.scheduler_overhead import CASES, Load, warm_steps
    from benchmarks.sdk_emit import Direct
    from otel_cache import instrumentor

    meter = Meter()
    idle = meter.timed(lambda: None, lambda function: function)
    for _ in range(CALIBRATION):
        idle()
    cost = meter.own / meter.calls
    events: list[Any] = []
    instrumentor.TARGETS = tuple(map(meter.target, instrumentor.TARGETS))
    instrumentor._pipeline = Direct(events.append, lambda: None)  # type: ignore[assignment]
    instrumentor.install()
    prompt, block, _ = CASES[case]
    load = Load(prompt, block)
    rows = []
    for step in range(warm_steps(prompt) + steps):
        load.fill()
        own, calls = meter.own, meter.calls
        whole = load.step()
        # Metering costs a hook something besides.
        own = meter.own - own - cost * (meter.calls - calls)
        events.clear()
        if step >= warm_steps(prompt):
            rows.append((1e6 * own, 1e6 * (whole - own), 100 * own / (whole - own)))
    names = ("hooks_us", "vllm_us", "share_percent")
    return {name: statistics.median(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def main() -> None:
    """Measure one case, and print one JSON object."""
    from benchmarks.scheduler_overhead import CASES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", choices=CASES, default="32000/16", help="which case")
    options = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    print(json.dumps({options.only: measure(options.only, options.steps)}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
