"""What the instrumentation costs vLLM's scheduler: the same steps without it, with it, and with an SDK span per record.

One workload per process, forked from one that has imported vLLM: the same requests, the same steps, so that step k of
one is step k of the other. They run in turns of a few steps, in random order, and who is not at turn is stopped, sender
thread and all. (A machine may be a fifth faster in one fifth of a second than in the next: longer turns would
measure that.) The first step of a turn is not counted: whoever was stopped finds its caches cold and its timers run
out, so that its sender would wake in each of these steps, which it does not in a process that runs.

What is timed is `schedule()` plus `update_from_output()`. Between them the model runs, for which a sleep stands: vLLM's
thread waits for a GPU in the same way. `--forward 0` leaves it out: then the sender thread has no other time than the
scheduler's.

    python benchmarks/scheduler_overhead.py [--rounds N] [--only 2000/16]
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update({"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"})

RUNNING = 64
BUDGET = 8192
CASES = {
    "2000/16": (2_000, 16, 800),
    "2000/1600": (2_000, 1_600, 800),
    "32000/16": (32_000, 16, 800),
    "32000/1600": (32_000, 1_600, 800),
    "100000/16": (100_000, 16, 800),
    "100000/1600": (100_000, 1_600, 800),
}
"""Prompt tokens, block size, measured steps."""
TURN = 5
"""Steps of a turn, with the first that is not counted."""
MODES = ("off", "off_again", "on", "sdk", "hooks")
"""Not patched; the same once more: what the measurement can tell apart; everything on; an SDK span for each record;
patched, and what is captured thrown away."""


class Load:
    """64 requests that run, six more that wait; a finished one is followed by a new one. Half of a prompt is shared."""

    def __init__(self, prompt: int, block: int) -> None:
        """Build the scheduler."""
        self._forward = 0.0
        from vllm.utils.gc_utils import freeze_gc_heap

        from analyzers.vllm_lab.engine import build_replicas
        from analyzers.vllm_lab.scenario import parse_scenario

        groups = [{"kind": "full_attention"}]
        if block > 16:
            groups.insert(0, {"kind": "mamba", "layers": 3})
        engine = {
            "block_size": block,
            "num_gpu_blocks": (RUNNING + 6) * (prompt // block + 12) * (4 if block > 16 else 1) + 100,
            "max_num_seqs": RUNNING,
            "max_num_batched_tokens": BUDGET,
            "max_model_len": 262_144,
            "groups": groups,
        }
        request = {"id": "a", "prompt": [{"segment": "a", "tokens": 10}]}
        scenario = parse_scenario({"engine": engine, "requests": [request]})
        replica = build_replicas(scenario.engine, 1)[0]
        self.scheduler = replica.scheduler
        self._hasher = replica.block_hasher
        self._random = random.Random(1)
        self._prompt = prompt
        self._shared = [self._random.randrange(10, 500) for _ in range(prompt // 2)]
        self._sent = 0
        freeze_gc_heap()  # as vLLM's engine core does when it has started

    def fill(self) -> None:
        """Send requests until enough of them are there."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        while len(self.scheduler.requests) < RUNNING + 6:
            self._sent += 1
            own = [self._random.randrange(10, 500) for _ in range(self._prompt - len(self._shared))]
            # Answers of some hundred tokens, as chats have: about one request in three steps ends.
            params = SamplingParams(max_tokens=self._random.randrange(100, 300), temperature=0)
            self.scheduler.add_request(
                Request(
                    request_id=f"r{self._sent}",
                    prompt_token_ids=self._shared + own,
                    sampling_params=params,
                    pooling_params=None,
                    block_hasher=self._hasher,
                )
            )

    def step(self) -> float:
        """Make a step; return the seconds in the scheduler."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduler = self.scheduler
        start = time.perf_counter()
        output = scheduler.schedule()
        scheduled = time.perf_counter()
        names = list(output.num_scheduled_tokens)
        requests = [scheduler.requests[name] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if each.num_computed_tokens >= each.num_prompt_tokens else [] for each in requests],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        if self._forward:
            time.sleep(self._forward)
        executed = time.perf_counter()
        scheduler.update_from_output(output, result)
        return time.perf_counter() - executed + scheduled - start


def warm_steps(prompt: int) -> int:
    """Return after how many steps every request runs and the pool is full."""
    return 2 * (RUNNING + 6) * prompt // BUDGET + 400


def measure(mode: str, prompt: int, block: int, forward: float, pipe: Any) -> None:
    """Run the workload in this process, a turn whenever it is told to, and send what its steps took."""
    os.chdir(tempfile.mkdtemp())
    close = start(mode)
    load = Load(prompt, block)
    for _ in range(warm_steps(prompt)):
        load.fill()
        load.step()
    settle()
    pipe.send("ready")
    load._forward = forward
    while pipe.recv():
        times = []
        for _ in range(TURN):
            load.fill()
            times.append(load.step())
        pipe.send(times[1:])
    pipe.send(close())


def settle() -> None:
    """Send all that the warming up has captured: who is stopped while it sends finds its time to do so run out."""
    from otel_cache import instrumentor

    flush = getattr(instrumentor._pipeline, "flush", None)
    if flush is not None:
        flush(60.0)


def start(mode: str) -> Any:
    """Instrument this process as `mode` says; return what ends it and says what came of it."""
    from benchmarks.sdk_emit import discard, make_sdk_emit
    from otel_cache import faults, instrumentor

    if mode in ("off", "off_again"):
        return dict
    if mode == "sdk":
        return make_sdk_emit()
    if mode == "hooks":
        return discard()
    instrumentor.install()

    def close() -> dict[str, Any]:
        pipeline = instrumentor._pipeline
        assert pipeline is not None
        lag = len(pipeline._ring)
        instrumentor.shutdown()
        if failed := faults.failures():
            print(f"hooks failed: {failed}", file=sys.stderr)
        return {"ring_lag": lag, "dropped": pipeline._ring.dropped, "faults": sum(failed.values())}

    return close


class Runner:
    """A process that runs the workload in one mode, and stands still, all threads of it, while the others run."""

    def __init__(self, mode: str, case: str, forward: float) -> None:
        """Start it and wait until it is warm."""
        self.times: list[float] = []
        self._pipe, theirs = multiprocessing.Pipe()
        prompt, block, _ = CASES[case]
        arguments = (mode, prompt, block, forward, theirs)
        self._process = multiprocessing.get_context("fork").Process(target=measure, args=arguments)
        self._process.start()
        theirs.close()
        self._pipe.recv()
        self._signal(signal.SIGSTOP)

    def turn(self) -> None:
        """Make a turn and keep what its steps took."""
        self._signal(signal.SIGCONT)
        self._pipe.send(True)
        self.times += self._pipe.recv()
        self._signal(signal.SIGSTOP)

    def close(self) -> dict[str, Any]:
        """End the process; return what it says of itself."""
        self._signal(signal.SIGCONT)
        self._pipe.send(False)
        said: dict[str, Any] = self._pipe.recv()
        self._process.join()
        return said

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def compare(case: str, rounds: int, modes: tuple[str, ...], forward: float) -> dict[str, Any]:
    """Return the overheads of one case: means over `rounds`, in each of which new processes make the same steps."""
    rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes[1:]}
    step_us = []
    order = random.Random(case)
    for _ in range(rounds):
        runners = {mode: Runner(mode, case, forward) for mode in modes}
        for _ in range(CASES[case][2] // (TURN - 1)):
            for mode in order.sample(modes, len(modes)):
                runners[mode].turn()
        off = runners["off"].times
        step_us.append(1e6 * statistics.mean(off))
        for mode, runner in runners.items():
            said = runner.close()
            if mode != "off":
                rows[mode].append({**compared(runner.times, off), **said})
    merged = {mode: {key: statistics.mean(row[key] for row in all_) for key in all_[0]} for mode, all_ in rows.items()}
    return {"step_us": statistics.mean(step_us), **merged}


def compared(ours: list[float], off: list[float]) -> dict[str, float]:
    """Return how much more time the steps took than the same steps of the process that is not patched."""
    differences = [one - other for one, other in zip(ours, off, strict=True)]
    return {
        "overhead_percent": 100 * (sum(ours) / sum(off) - 1),
        # Of this round, as if the steps were independent; that memory lies otherwise in each process comes on top.
        "overhead_percent_error": 100 * statistics.stdev(differences) * len(off) ** 0.5 / sum(off),
        "p99_ratio": quantile(ours, 0.99) / quantile(off, 0.99),
    }


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of `values` lie."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--forward", type=float, default=0.008, help="seconds that the model takes for a step")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--modes", default="on,sdk", help="of them, besides off")
    options = parser.parse_args()
    import vllm.v1.core.sched.scheduler  # noqa: F401  before the forks

    modes = ("off", *options.modes.split(","))
    rows = {}
    for case in options.only or CASES:
        rows[case] = compare(case, options.rounds, modes, options.forward)
        print(case, rows[case], file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
