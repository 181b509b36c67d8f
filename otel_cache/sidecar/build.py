"""Records of all processes to spans: one `ProcessBuilder` per process life."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from otel_cache.errors import RecordError
from otel_cache.records import (
    Acknowledge,
    Batch,
    Evict,
    Executed,
    Finished,
    Hello,
    Lookup,
    Record,
    RepeatedLookup,
    Replica,
    Reset,
    Step,
    StepDone,
    Store,
)
from otel_cache.semconv.names import WORKER_RANK
from otel_cache.sidecar.life import Gaps, ReplicaLife
from otel_cache.sidecar.spans import SpanData
from otel_cache.sidecar.worker import WorkerLife

_logger = logging.getLogger(__name__)

MAX_PROCESSES = 256
"""Process lives that are remembered after their connection ended, in case they connect again."""
MAX_LIVES = 1024
"""Schedulers and workers of one process. One has more only in tests, and none without end."""

_HANDLERS: dict[type[Record], Callable[[ReplicaLife, Any], None]] = {
    Lookup: ReplicaLife.on_lookup,
    RepeatedLookup: ReplicaLife.on_repeat,
    Store: ReplicaLife.on_store,
    Step: ReplicaLife.on_step,
    StepDone: ReplicaLife.on_done,
    Evict: ReplicaLife.on_evict,
    Reset: ReplicaLife.on_reset,
    Finished: ReplicaLife.on_finished,
}


class ProcessBuilder:
    """Builds the spans of one process life, over as many connections as it makes.

    Attributes:
        failed: records that could not be made spans.

    """

    def __init__(self, hello: Hello) -> None:
        """Begin with the process that `hello` names."""
        self.failed = 0
        self._process = hello.process
        # What an earlier sidecar received is in its file, but for what it held when it died.
        self._expected = hello.acknowledged
        self._gaps = Gaps(hello.held)
        self._evidence = hello.evidence
        self._dropped = 0
        self._lives: dict[int, ReplicaLife] = {}
        self._workers: dict[int, WorkerLife] = {}
        self._spans: list[SpanData] = []

    @property
    def missing(self) -> int:
        """Records of this process that never arrived."""
        return self._gaps.missing

    @property
    def progress(self) -> Acknowledge:
        """How far this process's records have become spans."""
        evidence = {**self._evidence, **{handle: life.evidence for handle, life in self._lives.items()}}
        return Acknowledge(self._expected, sum(life.held for life in self._lives.values()), evidence)

    def add(self, batch: Batch) -> list[SpanData]:
        """Return the spans that the records of `batch` finish."""
        self._dropped = max(self._dropped, batch.dropped)
        lives, workers = self._lives, self._workers
        expected = self._expected
        for record in batch.records:
            if record.sequence == expected:
                expected += 1
            elif record.sequence > expected:
                self._miss(record.sequence - expected)
                expected = record.sequence + 1
            elif type(record) is not Replica:
                # A frame that a broken connection cut short comes again whole, and so do the replicas' settings.
                continue
            try:
                if (handler := _HANDLERS.get(type(record))) is not None:
                    handler(lives.get(record.replica) or self._life(record.replica), record)
                elif type(record) is Executed:
                    (workers.get(record.replica) or self._worker(record.replica)).on_executed(record)
                elif type(record) is Replica:
                    self._introduce(record)
            except Exception:
                # A record that nobody foresaw costs its own span, never the ones after it.
                self.failed += 1
                if self.failed == 1:
                    _logger.exception("a record could not be made a span; further ones are only counted")
        self._expected = expected
        return self._take()

    def close(self) -> list[SpanData]:
        """Return the spans of all that is open: nothing more will come, or not soon."""
        # What a process dropped shows as a hole in the numbers, but for the drops after its last record.
        self._gaps.missing = max(self._gaps.missing, self._dropped)
        if self._gaps.missing and not self._lives and not self._workers:
            self._life(0)
        for life in self._lives.values():
            life.close()
        return self._take()

    def _miss(self, records: int) -> None:
        self._gaps.missing += records
        for life in self._lives.values():
            life.interrupt()

    def _introduce(self, record: Replica) -> None:
        if WORKER_RANK in record.attributes:
            self._worker(record.replica).on_replica(record)
        else:
            self._life(record.replica).on_replica(record)

    def _life(self, handle: int) -> ReplicaLife:
        life = self._lives.get(handle)
        if life is None:
            self._check_room()
            first = self._evidence.get(handle, 0)
            life = self._lives[handle] = ReplicaLife(self._process, handle, self._gaps, self._spans, first)
        return life

    def _worker(self, handle: int) -> WorkerLife:
        worker = self._workers.get(handle)
        if worker is None:
            self._check_room()
            worker = self._workers[handle] = WorkerLife(self._process, handle, self._spans)
        return worker

    def _check_room(self) -> None:
        if len(self._lives) + len(self._workers) >= MAX_LIVES:
            raise RecordError(f"more than {MAX_LIVES} schedulers and workers in one process")

    def _take(self) -> list[SpanData]:
        spans = self._spans[:]
        self._spans.clear()
        return spans


class Processes:
    """The process lives that were heard of, so that one that connects again goes on where it was."""

    def __init__(self) -> None:
        """Begin without any."""
        self._builders: OrderedDict[str, ProcessBuilder] = OrderedDict()
        self._missing = 0
        self._failed = 0
        self._forgotten = 0

    def get(self, hello: Hello) -> ProcessBuilder:
        """Return the builder of the process that says `hello`."""
        builder = self._builders.get(hello.process)
        if builder is None:
            builder = self._builders[hello.process] = ProcessBuilder(hello)
            if len(self._builders) > MAX_PROCESSES:
                forgotten = self._builders.popitem(last=False)[1]
                self._missing += forgotten.missing
                self._failed += forgotten.failed
                self._forgotten += 1
        self._builders.move_to_end(hello.process)
        return builder

    @property
    def seen(self) -> int:
        """How many processes have sent something."""
        return self._forgotten + len(self._builders)

    @property
    def heard(self) -> bool:
        """Whether any process has connected."""
        return bool(self._builders)

    @property
    def missing(self) -> int:
        """Records of all processes that never arrived."""
        return self._missing + sum(builder.missing for builder in self._builders.values())

    @property
    def failed(self) -> int:
        """Records of all processes that could not be made spans."""
        return self._failed + sum(builder.failed for builder in self._builders.values())
