"""Any inputs to one Parquet file of typed columns."""

import os
from collections.abc import Iterator, Sequence

from analyzers.readers import typed_writer
from analyzers.readers.beside import read_all
from analyzers.readers.columns import Batch
from analyzers.readers.object_storage import is_address
from analyzers.readers.sources import find_sources, is_source
from analyzers.readers.tally import Progress, Tally, no_progress, nothing_of_ours
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
    sources = find_sources(paths, tally)

    def batches() -> Iterator[Batch]:
        found = False
        for batch, _ in read_all(sources, tally, progress):
            tally.add(batch.tally)
            found = found or any(frame.height for frame in batch.frames.values())
            yield batch
        if not found:
            # Before anything is put in the place of the file.
            raise nothing_of_ours([source.label for source in sources], tally)

    return typed_writer.write(batches(), output), tally.notes()
