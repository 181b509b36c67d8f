"""Any number of inputs to one capture."""

import os
from collections.abc import Sequence

from analyzers.memory import give_back
from analyzers.model import Capture
from analyzers.readers.beside import read_all
from analyzers.readers.frames import CaptureBuilder
from analyzers.readers.sources import find_sources
from analyzers.readers.tally import Progress, Tally, no_progress, nothing_of_ours


def open_capture(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    progress: Progress = no_progress,
    *,
    cache: bool = False,
) -> Capture:
    """Read files, folders, globs, `-` (stdin) and Parquet in object storage as one capture; one or several of them.

    What an input holds is told by its content: OTLP as JSON or Protobuf, compressed or not, Parquet, or what Jaeger or
    Tempo let somebody download. Lines and spans that cannot be read are counted and noted in the capture, spans of
    other programs counted.

    With `cache` what is read of a file is kept beside it as `.NAME.otel-cache.parquet`, from which it is read the next
    time, as long as the file stays what it is.

    Raises:
        CaptureError: an input does not exist, cannot be read or is empty, or none holds a span of otel_cache.

    """
    tally = Tally()
    builder = CaptureBuilder(tally)
    sources = find_sources([paths] if isinstance(paths, str | os.PathLike) else paths, tally)
    for batch, where in read_all(sources, tally, progress, cache=cache):
        builder.add(batch, where)
    give_back()
    capture = builder.build()
    give_back()
    if not capture.spans:
        raise nothing_of_ours([source.label for source in sources], tally)
    return capture
