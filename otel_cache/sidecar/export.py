"""Export: spans are encoded in batches, wait in a backlog, and are sent by a thread of its own.

A slow collector never holds up the evidence: what it does not take waits on disk.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from otel_cache.semconv import names
from otel_cache.sidecar.backlog import Backlog
from otel_cache.sidecar.exporters import Answer, Exporter, Outcome
from otel_cache.sidecar.otlp_protobuf import encode_spans
from otel_cache.sidecar.spans import SpanData
from otel_cache.sidecar.spool import Encoded
from otel_cache.sidecar.tracing import EVIDENCE

_logger = logging.getLogger(__name__)

BATCH_SPANS = 512
MAX_BATCH_BYTES = 3 << 20
"""Collectors take 4 MiB in a gRPC message."""
BATCH_SECONDS = 1.0
PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 5.0
CLOSE_SECONDS = 10.0


class ExportQueue:
    """Encodes spans and sends them. `put`, `flush_old` and `close` belong to one thread, sending to another.

    Attributes:
        exported: spans that the collector took.
        succeeded: when it last took some, ns since the epoch; 0: never.
        failed: when it last did not; 0: never. `error` says why.

    """

    def __init__(self, exporter: Exporter, backlog: Backlog) -> None:
        """Start the thread, which begins with what `backlog` holds."""
        self.exported = 0
        self.succeeded = 0
        self.failed = 0
        self.error = ""
        self._exporter = exporter
        self._backlog = backlog
        self._open: list[SpanData] = []
        self._open_since = 0.0
        self._told = 0
        self._deadline: float | None = None
        self._away = False
        self._thread = threading.Thread(target=self._run, name="otel-cache-export", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Spans that will never reach the collector."""
        return self._backlog.lost

    @property
    def backlog(self) -> Backlog:
        """What waits."""
        return self._backlog

    def put(self, spans: Iterable[SpanData]) -> None:
        """Take spans; a batch is encoded when it is full, or by `flush_old`."""
        for span in spans:
            if not self._open:
                self._open_since = time.monotonic()
            self._open.append(self._tell(span) if self._backlog.untold and span.name in EVIDENCE else span)
            if len(self._open) >= BATCH_SPANS:
                self._seal()

    def flush_old(self) -> None:
        """Send the batch that is not full yet, if it has waited long enough."""
        if self._open and time.monotonic() - self._open_since >= BATCH_SECONDS:
            self._seal()

    def close(self, seconds: float = CLOSE_SECONDS) -> int:
        """Send what waits within `seconds`; return how many spans stay on disk for the next sidecar."""
        if self._open:
            self._seal()
        with self._backlog.changed:
            self._deadline = time.monotonic() + (0 if self._away else seconds)
            self._backlog.changed.notify_all()
        self._thread.join(0 if self._away else seconds)
        with _quiet():
            self._exporter.shutdown()
            # The shutdown ends an export that is under way.
            self._thread.join(2.0)
        return self._backlog.close()

    def _tell(self, span: SpanData) -> SpanData:
        dropped = self._backlog.take_untold()
        self._told += dropped
        return replace(span, attributes={**span.attributes, names.EXPORT_DROPPED: dropped})

    def _seal(self) -> None:
        told, self._told = self._told, 0
        for spans in _split(self._open):
            self._backlog.put(Encoded(*spans, told))
            told = 0
        self._open = []

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while (batch := self._next()) is not None:
            try:
                answer = self._exporter.send(batch.data, batch.spans)
            except Exception as error:
                _logger.exception("a batch of spans could not be exported")
                answer = Answer(Outcome.REFUSED, error=str(error))
            if answer.outcome is Outcome.AWAY:
                self._note(answer.error)
                self._away = True
                self._backlog.keep()
                self._wait(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
                continue
            self._away = False
            pause = PAUSE_SECONDS
            if answer.outcome is Outcome.SENT:
                self._backlog.sent(answer.rejected)
                self.exported += batch.spans - answer.rejected
                self.succeeded = time.time_ns()
                continue
            self._note(answer.error)
            _logger.error("the collector refuses spans for good: %s (they are dropped, and counted)", answer.error)
            self._backlog.refused()

    def _next(self) -> Encoded | None:
        """Return the oldest batch; None when all is done, or when the time for it is over."""
        with self._backlog.changed:
            while True:
                if self._deadline is not None and (self._away or time.monotonic() >= self._deadline):
                    return None
                if (batch := self._backlog.peek()) is not None or self._deadline is not None:
                    return batch
                self._backlog.changed.wait()

    def _wait(self, pause: float) -> None:
        until = time.monotonic() + pause
        with self._backlog.changed:
            while self._deadline is None and (left := until - time.monotonic()) > 0:
                self._backlog.changed.wait(left)

    def _note(self, error: str) -> None:
        self.failed = time.time_ns()
        self.error = error


def _split(spans: Sequence[SpanData]) -> Iterator[tuple[bytes, int]]:
    """Yield `spans` encoded, in as many parts as the limit of a message asks for."""
    data = encode_spans(spans)
    if len(data) <= MAX_BATCH_BYTES or len(spans) == 1:
        yield data, len(spans)
        return
    half = len(spans) // 2
    yield from _split(spans[:half])
    yield from _split(spans[half:])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep an exporter's complaint about its own shutdown from the user."""
    logger = logging.getLogger("opentelemetry")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
