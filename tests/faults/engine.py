"""A process with vLLM's own scheduler in it, traced if the environment says so: `python engine.py FOLDER [OPTION...]`.

FOLDER has `scenario.json`. Written there: `results.json`, what vLLM said of each request; `records.jsonl`, the number
and the kind of every record that the plugin sent; `steps`, for each step its index and when it was scheduled, 16 bytes.
While there is a file `slow` a step takes some milliseconds more; a number in it is the last step that may be made.
`--seeded` seeds `random` and numpy as every rank is;
`--family` runs the scenario in a forked and in a spawned child as well.
"""

import json
import multiprocessing
import os
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

STEP = struct.Struct("<qq")
PAUSE_SECONDS = 0.016


def follow(folder: Path) -> None:
    """Write down what the plugin sends, and what the scheduler does."""
    from analyzers.vllm_lab import driver
    from otel_cache.pipeline import sender
    from otel_cache.records import Batch

    sender.RECONNECT_SECONDS = 0.05
    encode = sender.encode_frame
    step, steps = driver._Driver.step, os.open(folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def encode_frame(message: Any) -> bytes:
        if isinstance(message, Batch):
            rows = [
                [one.sequence, type(one).__name__, getattr(one, "request", ""), getattr(one, "scheduled", 0)]
                for one in message.records
            ]
            with (folder / "records.jsonl").open("a") as file:
                file.write(json.dumps([os.getpid(), rows]) + "\n")
        return encode(message)

    count = 0

    def counted(self: Any) -> None:
        nonlocal count
        step(self)
        count += 1
        os.write(steps, STEP.pack(count, time.time_ns()))
        while (limit := allowed(folder)) is not None:
            time.sleep(PAUSE_SECONDS)
            if count < limit:
                break

    sender.encode_frame = encode_frame
    driver._Driver.step = counted  # type: ignore[method-assign]


def allowed(folder: Path) -> float | None:
    """Return the step to wait at while the run is slow; None: it is not."""
    try:
        return float((folder / "slow").read_text() or "inf")
    except FileNotFoundError:
        return None


def run(folder: Path, name: str) -> None:
    """Run the scenario once; write what vLLM says of each request."""
    import msgspec

    from analyzers.vllm_lab.driver import run_scenario
    from analyzers.vllm_lab.scenario import parse_scenario

    # The lab writes its model into the working folder.
    place = folder / Path(name).stem
    place.mkdir()
    os.chdir(place)
    ran = run_scenario(parse_scenario(json.loads((folder / "scenario.json").read_text())))
    (folder / name).write_bytes(msgspec.json.encode(ran.requests))


def spawned(folder: Path) -> None:
    """Run it in a child that inherits nothing."""
    run(folder, "spawned.json")
    _flush()


def _flush() -> None:
    from otel_cache import instrumentor

    instrumentor.shutdown()


def main(folder: Path, options: list[str]) -> None:
    """Run the scenario."""
    import vllm  # noqa: F401

    follow(folder)
    if "--seeded" in options:
        import numpy

        random.seed(0)
        numpy.random.seed(0)
    run(folder, "results.json")
    if "--family" in options:
        # The patches and a sender are there: the child that is forked now has the first and not the second.
        child = os.fork()
        if child == 0:
            run(folder, "forked.json")
            _flush()
            os._exit(0)
        other = multiprocessing.get_context("spawn").Process(target=spawned, args=(folder,))
        other.start()
        run(folder, "again.json")
        other.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert other.exitcode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
