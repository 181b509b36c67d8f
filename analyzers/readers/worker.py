"""Processes that decode: Python decodes in one thread at a time, a machine has more.

They are programs of their own, not forks: polars has threads, and whoever calls may have a main module that cannot be
imported again. Each takes one task at a time from its stdin and answers on its stdout, in pickles between a process and
its own child.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from otel_cache.errors import CaptureError

MAX_WORKERS = 8
_PROGRAM = "import sys; from analyzers.readers.worker import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
Task = tuple[Any, ...]


def run(function: Callable[..., Any], tasks: Iterable[Task]) -> Iterator[Any]:
    """Yield `function(*task)` for each task, in order, as many at a time as this process may use processors.

    Raises:
        CaptureError: a process ended before it had answered.

    """
    workers: list[_Worker] = []
    busy: deque[_Worker] = deque()
    most = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    try:
        for task in tasks:
            if len(busy) == most:
                worker = busy.popleft()
                answer = worker.answer()
                # It works on the next one while whoever asked looks at this one.
                worker.ask(task)
                busy.append(worker)
                yield answer
            else:
                workers.append(_Worker(function))
                workers[-1].ask(task)
                busy.append(workers[-1])
        while busy:
            yield busy.popleft().answer()
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._send(function)

    def ask(self, task: Task) -> None:
        self._send(task)

    def _send(self, what: Any) -> None:
        try:
            pickle.dump(what, self._in, protocol=pickle.HIGHEST_PROTOCOL)
            self._in.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def answer(self) -> Any:
        try:
            return pickle.load(self._out)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error

    def _ended(self) -> CaptureError:
        return CaptureError(f"a process that reads ended (exit code {self._process.wait()}); is memory short?")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


def serve(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Answer tasks until there are no more."""
    # Ctrl-C is for the process that asks; this one ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing that is decoded refers to itself, and there is much of it.
    gc.disable()
    try:
        function = pickle.load(tasks)
        while True:
            pickle.dump(function(*pickle.load(tasks)), answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, BrokenPipeError):
        return
