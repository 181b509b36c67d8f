"""One input to batches of typed columns, in the order of its records."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from analyzers.readers import otlp_json, otlp_protobuf, parquet, worker
from analyzers.readers.columns import Batch, BatchBuilder
from analyzers.readers.content import open_content
from analyzers.readers.framing import Record, records
from analyzers.readers.sources import Source
from analyzers.readers.tally import Tally

FIRST_BYTES = 4 << 20
"""So much of an input is decoded before it pays to load the scanners for the rest."""
BATCH_BYTES = 16 << 20
"""So much of what follows becomes one batch: what bounds the memory."""
THREADS = 8


def read_batches(source: Source) -> Iterator[tuple[Batch, str]]:
    """Yield the spans of `source`, and what a record of it is called: line, message or row.

    Raises:
        CaptureError: it cannot be read, or is empty.

    """
    if source.address:
        yield from ((batch, "row") for batch in parquet.read(source.address, source.label))
        return
    with open_content(source.path, source.label) as content:
        if content.form == "parquet":
            # Parquet is read from its end: what cannot seek is taken into memory.
            in_place = source.path is not None and source.path.is_file() and not content.compressed
            file = source.path if in_place and source.path else content.stream.read()
            yield from ((batch, "row") for batch in parquet.read(file, source.label))
            return
        what = "message" if content.form == "messages" else "line"
        tally = Tally()
        portions = _portions(records(content, source.label, tally))
        for some in islice(portions, 1):
            yield decode(some, source.label, what), what
        for batch in _rest(portions, source.label, what):
            yield batch, what
        yield Batch(tally=tally), what


def _rest(portions: Iterator[list[Record]], label: str, what: str) -> Iterator[Batch]:
    """Yield the batches of a large input, decoded with all processors that there are, in order."""
    some = next(portions, None)
    if some is None:
        return
    count = len(some)
    batch, left = scan(some, label, what)
    yield batch
    if 2 * left > count:
        # What the scanners do not read Python decodes, in one thread at a time.
        yield from worker.run(decode, ((some, label, what) for some in portions))
        return
    most = min(THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(most) as pool:
        waiting: deque[Future[tuple[Batch, int]]] = deque()
        for some in portions:
            waiting.append(pool.submit(scan, some, label, what))
            if len(waiting) > most:
                yield waiting.popleft().result()[0]
        while waiting:
            yield waiting.popleft().result()[0]


def _portions(every: Iterator[Record]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size, enough = 0, min(FIRST_BYTES, BATCH_BYTES)
    for record in every:
        portion.append(record)
        size += len(record.data)
        if size >= enough:
            yield portion
            portion, size, enough = [], 0, BATCH_BYTES
    if portion:
        yield portion


def decode(some: Sequence[Record], label: str, what: str) -> Batch:
    """Return the spans in records of one input."""
    builder = BatchBuilder(label, what)
    (otlp_protobuf if what == "message" else otlp_json).read(some, builder)
    return builder.build()


def scan(some: list[Record], label: str, what: str) -> tuple[Batch, int]:
    """Return the spans in records of one input, and how many of the records no scanner could read.

    `some` is empty then: what they hold is in memory but once.
    """
    # It loads a compiler: not for inputs that are read before it were ready.
    from analyzers.readers import scanning

    builder = BatchBuilder(label, what)
    json = [record for record in some if what == "line" or record.data.startswith(b"{")]
    messages = [record for record in some if what == "message" and not record.data.startswith(b"{")]
    some.clear()
    left = scanning.scan(json, True, otlp_json.read_resource, builder)
    otlp_json.read(left, builder)
    more = scanning.scan(messages, False, otlp_protobuf.read_resource, builder)
    otlp_protobuf.read(more, builder)
    return builder.build(), len(left) + len(more)
