"""Any inputs to one Parquet file of typed columns."""

import os
from collections.abc import Iterator, Sequence

from analyzers.readers import typed_parquet
from analyzers.readers.batches import read_batches
from analyzers.readers.columns import Batch
from analyzers.readers.sources import find_sources, is_source
from analyzers.readers.tally import FILE, Progress, Tally, no_progress
from otel_cache.errors import CaptureError, UsageError


def convert(
    paths: Sequence[str | os.PathLike[str]], output: str, progress: Progress = no_progress
) -> tuple[int, list[str]]:
    """Write what `open_capture` would read to the Parquet file `output`; the memory does not grow with the inputs.

    Return how many spans of otel_cache there were, each as often as it came, and notes on what was passed over.

    Raises:
        CaptureError: as `open_capture`.
        UsageError: `output` is an input, or cannot be written.

    """
    if is_source(output, paths):
        raise UsageError(f"{output} is one of the captures; give another file")
    tally = Tally()

    def batches() -> Iterator[Batch]:
        read, sources = 0, find_sources(paths, tally)
        for number, source in enumerate(sources, 1):
            try:
                for batch, _ in read_batches(source):
                    tally.add(batch.tally)
                    read += sum(frame.height for frame in batch.frames.values())
                    progress(read, number, len(sources))
                    yield batch
            except CaptureError as error:
                if not source.found:
                    raise
                tally.skip(FILE, "passed over", str(error))

    return typed_parquet.write(batches(), output), tally.notes()
