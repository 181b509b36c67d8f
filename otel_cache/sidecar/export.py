"""Export: spans are encoded in batches, wait in a backlog, and are sent by a thread of its own.

A slow collector never holds up the evidence: what it does not take waits on disk.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter

from otel_cache.semconv import names
from otel_cache.sidecar.backlog import Backlog
from otel_cache.sidecar.exporters import Answer, Exporter, Outcome
from otel_cache.sidecar.otlp_protobuf import encode_request, encode_span, split
from otel_cache.sidecar.resource import ReplicaResource
from otel_cache.sidecar.spans import SpanData
from otel_cache.sidecar.spool import Encoded
from otel_cache.sidecar.tracing import EVIDENCE

_logger = logging.getLogger(__name__)

BATCH_SPANS = 2048
BATCH_BYTES = 3 << 18
"""Proxies in front of collectors often take 1 MiB: a batch that has reached this is sent."""
MAX_BATCH_BYTES = 3 << 20
"""Collectors take 4 MiB in a gRPC message."""
PART_SPANS = 256
"""Spans that are dealt with in one go."""
BATCH_SECONDS = 1.0
PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 5.0
CLOSE_SECONDS = 10.0
SAY_SECONDS = 60.0
"""That the collector is away is said at most this often: one that is overloaded comes and goes."""
EACH_TIME = "each_time"
"""Attribute of a log record that is no repetition, though it reads like one."""


class ExportQueue:
    """Encodes spans and sends them. `put`, the flushes and `close` belong to one thread, sending to another.

    Attributes:
        succeeded: when it last took some, ns since the epoch; 0: never.
        failed: when it last did not; 0: never. `error` says why.

    """

    def __init__(self, exporter: Exporter, backlog: Backlog) -> None:
        """Start the thread, which begins with what `backlog` holds."""
        self.succeeded = 0
        self.failed = 0
        self.error = ""
        self._exporter = exporter
        self._backlog = backlog
        self._open: defaultdict[ReplicaResource, list[bytes]] = defaultdict(list)
        self._open_spans = self._open_bytes = 0
        self._open_since = 0.0
        self._told = 0
        self._deadline: float | None = None
        self._away = False
        self._said_away = False
        self._next_say = 0.0
        self._thread = threading.Thread(target=self._run, name="otel-cache-export", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> Backlog:
        """What waits, and how much arrived and was lost."""
        return self._backlog

    def put(self, spans: Sequence[SpanData]) -> None:
        """Encode spans; a batch waits to be sent when it is full, or by `flush_old`."""
        for start in range(0, len(spans), PART_SPANS):
            part = spans[start : start + PART_SPANS]
            if self._backlog.untold:
                part = self._tell(part)
            if not self._open:
                self._open_since = time.monotonic()
            for resource, spans_of_one in groupby(part, attrgetter("resource")):
                encoded = list(map(encode_span, spans_of_one))
                self._open[resource] += encoded
                self._open_spans += len(encoded)
                self._open_bytes += sum(map(len, encoded))
            if self._open_spans >= BATCH_SPANS or self._open_bytes >= BATCH_BYTES:
                self._seal()

    def flush_old(self) -> None:
        """Send the batch that is not full yet, if it has waited long enough."""
        if time.monotonic() - self._open_since >= BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the batch that is not full yet."""
        if self._open:
            self._seal()

    def close(self, seconds: float = CLOSE_SECONDS) -> int:
        """Send what waits within `seconds`; return how many spans stay on disk for the next sidecar."""
        self.flush()
        with self._backlog.changed:
            self._deadline = time.monotonic() + (0 if self._away else seconds)
            self._backlog.changed.notify_all()
        self._thread.join(0 if self._away else seconds)
        with _quiet():
            self._exporter.shutdown()
            # The shutdown ends an export that is under way.
            self._thread.join(2.0)
        return self._backlog.close()

    def _tell(self, spans: Sequence[SpanData]) -> Sequence[SpanData]:
        """Return `spans` with what was dropped before told on the first of the evidence, where there is one."""
        for number, span in enumerate(spans):
            if span.name in EVIDENCE:
                dropped = self._backlog.take_untold()
                self._told += dropped
                return [*spans[:number], span.with_attribute(names.EXPORT_DROPPED, dropped), *spans[number + 1 :]]
        return spans

    def _seal(self) -> None:
        told, self._told = self._told, 0
        # One that is large may be too large for a message.
        parts = [self._open] if self._open_bytes <= MAX_BATCH_BYTES else split(self._open, MAX_BATCH_BYTES)
        for part in parts:
            self._backlog.put(Encoded(encode_request(part), sum(map(len, part.values())), told))
            told = 0
        self._open.clear()
        self._open_spans = self._open_bytes = 0

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
                self._say_away(answer.error)
                self._wait(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
                continue
            self._away = False
            pause = PAUSE_SECONDS
            self._say_back()
            if answer.outcome is Outcome.SENT:
                self.succeeded = time.time_ns()
                self._backlog.sent(answer.rejected)
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

    def _say_away(self, error: str) -> None:
        now = time.monotonic()
        # At its end the sidecar says itself what becomes of what waits.
        if self._said_away or self._deadline is not None or now < self._next_say:
            return
        self._said_away, self._next_say = True, now + SAY_SECONDS
        _logger.warning(
            "the collector takes no spans (%s): they are kept %s, and sent when it takes them again",
            error,
            self._backlog.place,
            extra={EACH_TIME: True},
        )

    def _say_back(self) -> None:
        if self._said_away:
            self._said_away = False
            waiting = self._backlog.standing.waiting
            _logger.warning("the collector answers again: %d spans wait to be sent", waiting, extra={EACH_TIME: True})

    def _note(self, error: str) -> None:
        self.failed = time.time_ns()
        self.error = error


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
