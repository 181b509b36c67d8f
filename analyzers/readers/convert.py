"""Any inputs to one Parquet file of typed columns."""

import os
from collections.abc import Iterator, Sequence

from analyzers.readers import typed_writer
from analyzers.readers.beside import read_all
from analyzers.readers.columns import Batch
from analyzers.readers.object_storage import is_address
from analyzers.readers.sources import find_sources, is_source
from analyzers.readers.tally import Progress, Tally, no_progress
from otel_cache.errors import UsageError


def convert(
    paths: Sequence[str | os.PathLike[str]], output: str, progress: Progress = no_progress
) -> tuple[int, list[str]]:
    """Write what `open_capture` would read to the Parquet file `output`; the memory does not grow with the inputs.

    Return how many spans of otel_cache there were, each as often as it came, and notes on what was passed over.

    Raises:
        CaptureError: as `open_capture`.
        UsageError: `output` is an input, or cannot be written.

    """
    if is_address(output):
        raise UsageError(f"{output} is in object storage, which is not written to; give a file, and upload that")
    if is_source(output, paths):
        raise UsageError(f"{output} is one of the captures; give another file")
    tally = Tally()

    def batches() -> Iterator[Batch]:
        for batch, _ in read_all(find_sources(paths, tally), tally, progress):
            tally.add(batch.tally)
            yield batch

    return typed_writer.write(batches(), output), tally.notes()
