"""One input to batches of typed columns, in the order of its records."""

from collections.abc import Iterator, Sequence
from itertools import islice

from analyzers.readers import otlp_json, otlp_protobuf, parquet, worker
from analyzers.readers.columns import Batch, BatchBuilder
from analyzers.readers.content import open_content
from analyzers.readers.framing import Record, records
from analyzers.readers.sources import Source
from analyzers.readers.tally import Tally

BATCH_BYTES = 8 << 20
"""So much of an input becomes one batch: what bounds the memory."""
ALONE = 2
"""So many batches are decoded before it pays to start other processes for the rest."""


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
        for some in islice(portions, ALONE):
            yield decode(some, source.label, what), what
        for batch in worker.run(decode, ((some, source.label, what) for some in portions)):
            yield batch, what
        yield Batch(tally=tally), what


def _portions(every: Iterator[Record]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size = 0
    for record in every:
        portion.append(record)
        size += len(record.data)
        if size >= BATCH_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def decode(some: Sequence[Record], label: str, what: str) -> Batch:
    """Return the spans in records of one input."""
    builder = BatchBuilder(label, what)
    (otlp_protobuf if what == "message" else otlp_json).read(some, builder)
    return builder.build()
