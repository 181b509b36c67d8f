"""What a tracing back end can do without: most steps, and fingerprints on a fine grid.

Steps that prefill, evict, preempt or run long go out with their workers' spans, and a share of the others. The share is
decided by the trace id, so that a step and its workers agree wherever they are. A worker's span that comes before its
step waits for the step's decision.
"""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID

from otel_cache.semconv import names
from otel_cache.sidecar.spans import SpanData

DEFAULT_SHARE = 0.01
LONG = 3.0
"""A step runs long where it takes more than so many times the replica's running median."""
MEDIAN_OF = 129
MEDIAN_FROM = 16
"""Durations that a median needs before anything is called long."""
FINE_GRID_TOKENS = 256
"""Replicas with hash blocks below this do without their own fingerprints: the common grid stays."""
MAX_TRACES = 4096
MAX_MEDIANS = 1024
_FINE = frozenset([names.FINGERPRINT_VALUES, names.FINGERPRINT_FIRST])
_LOW_BYTES = 8
"""Of the trace id."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RunningMedian:
    """The median of the latest durations."""

    def __init__(self) -> None:
        """Begin without any."""
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def exceeds(self, value: float) -> bool:
        """Return whether `value` is long beside those before it, and count it among them."""
        known = len(self._sorted)
        long = known >= MEDIAN_FROM and value > LONG * self._sorted[known // 2]
        if known == MEDIAN_OF:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(value)
        insort(self._sorted, value)
        return long


class Thinning:
    """Takes spans in, and gives out those that a back end needs.

    Attributes:
        dropped: spans of steps and workers that were left out.

    """

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        """Keep the share `share`, 0 to 1, of ordinary steps."""
        self.dropped = 0
        self._bound = round(share * (1 << 8 * _LOW_BYTES))
        self._evicting: OrderedDict[bytes, None] = OrderedDict()
        self._decided: OrderedDict[bytes, bool] = OrderedDict()
        self._held: OrderedDict[bytes, list[SpanData]] = OrderedDict()
        self._medians: OrderedDict[tuple[object, str], RunningMedian] = OrderedDict()

    def take(self, spans: Sequence[SpanData]) -> Iterator[SpanData]:
        """Yield those of `spans`, and of the workers' before them, that go out."""
        for span in spans:
            trace = span.context.trace_id
            if span.name == names.STEP:
                yield from self._step(span, trace)
            elif span.name == names.EXECUTE:
                yield from self._execute(span, trace)
            else:
                if span.name == names.EVICT and span.parent is not None:
                    _remember(self._evicting, trace, None, MAX_TRACES)
                yield _without_fine_grid(span)

    def close(self) -> None:
        """Count what still waits for its step: it will not come."""
        self.dropped += sum(len(spans) for spans in self._held.values())
        self._held.clear()

    def _step(self, span: SpanData, trace: bytes) -> Iterator[SpanData]:
        attributes = span.attributes
        long = [
            self._long(span, key, value)
            for key in (names.STEP_SCHEDULE_DURATION, names.STEP_EXECUTE_DURATION)
            if isinstance(value := attributes.get(key), float)
        ]
        keep = (
            any(long)
            or bool(attributes.get(names.STEP_PREFILL_TOKENS))
            or bool(attributes.get(names.STEP_PREEMPTED_REQUESTS))
            or trace in self._evicting
            or self._in_share(trace)
        )
        self._evicting.pop(trace, None)
        _remember(self._decided, trace, keep, MAX_TRACES)
        workers = self._held.pop(trace, [])
        if keep:
            yield from workers
            yield span
        else:
            self.dropped += len(workers) + 1

    def _execute(self, span: SpanData, trace: bytes) -> Iterator[SpanData]:
        long = self._long(span, span.name, (span.end - span.start) / 1e9)
        decided = self._decided.get(trace)
        if long or decided or self._in_share(trace):
            yield span
        elif decided is not None:
            self.dropped += 1
        else:
            self._held.setdefault(trace, []).append(span)
            while len(self._held) > MAX_TRACES:
                self.dropped += len(self._held.popitem(last=False)[1])

    def _long(self, span: SpanData, what: str, seconds: float) -> bool:
        key = (span.resource.attributes[SERVICE_INSTANCE_ID], what)
        median = self._medians.get(key)
        if median is None:
            median = RunningMedian()
            _remember(self._medians, key, median, MAX_MEDIANS)
        return median.exceeds(seconds)

    def _in_share(self, trace: bytes) -> bool:
        return int.from_bytes(trace[-_LOW_BYTES:], "big") < self._bound


def _without_fine_grid(span: SpanData) -> SpanData:
    block = span.resource.attributes.get(names.HASH_BLOCK_SIZE)
    if not isinstance(block, int) or block >= FINE_GRID_TOKENS or names.FINGERPRINT_VALUES not in span.attributes:
        return span
    return span.with_attributes({key: value for key, value in span.attributes.items() if key not in _FINE})


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value, limit: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > limit:
        known.popitem(last=False)
