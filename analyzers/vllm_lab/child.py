"""The process in which vLLM runs: `python -m analyzers.vllm_lab.child FOLDER`, started by `run.LabWorker`.

Reads jobs as JSON lines from stdin and answers each with one JSON line on stdout. Whatever vLLM prints goes to stderr.
The instrumentation comes as in production, through vLLM's own plugin loader; the child only tells it where this job's
records go, and waits at the end of the job until they are there.
"""

import os
import shutil
import sys
import traceback
from typing import BinaryIO

import msgspec

from analyzers.vllm_lab.results import Answer, Job, LabResult
from analyzers.vllm_lab.scenario import Scenario
from otel_cache.config import SOCKET
from otel_cache.errors import OtelCacheError

FLUSH_SECONDS = 60.0


def run_job(job: Job) -> Answer:
    """Run one job, and send what the instrumentation recorded of it."""
    version = ""
    os.environ.pop(SOCKET, None)
    if job.socket is not None:
        os.environ[SOCKET] = job.socket
    try:
        scenario = msgspec.convert(job.scenario, Scenario)
        import vllm

        version = vllm.__version__
        from analyzers.vllm_lab.driver import run_scenario

        ran = run_scenario(scenario, _pace if job.socket is not None else lambda: None)
        result = LabResult(version, ran.requests, ran.replicas)
    except OtelCacheError as error:
        return Answer(error=str(error), known=True, vllm_version=version)
    except Exception as error:
        traceback.print_exc()
        return Answer(error=f"{type(error).__name__}: {' '.join(str(error).split())}", vllm_version=version)
    finally:
        if job.socket is not None:
            from otel_cache import instrumentor

            instrumentor.shutdown()
    return Answer(result=result, vllm_version=version)


def _pace() -> None:
    """Let the sender catch up: what found no room on its way would be missing from the capture."""
    from otel_cache import instrumentor

    instrumentor.flush(FLUSH_SECONDS)


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until there are no more."""
    for line in jobs:
        answer = run_job(msgspec.json.decode(line, type=Job))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def main() -> None:
    """Serve on stdin and stdout, in a folder of our own: vLLM is given the model by a relative path."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    folder = sys.argv[1]
    os.chdir(folder)
    try:
        serve(sys.stdin.buffer, answers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
