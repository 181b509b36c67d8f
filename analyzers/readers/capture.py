"""Any number of inputs to one capture."""

import os
from collections.abc import Sequence

from analyzers.model import Capture
from analyzers.readers import otlp_json, parquet
from analyzers.readers.frames import CaptureBuilder
from analyzers.readers.sources import find_sources, open_source
from analyzers.readers.tally import Tally
from otel_cache.errors import CaptureError


def open_capture(paths: Sequence[str | os.PathLike[str]]) -> Capture:
    """Read files, folders, globs and `-` (stdin) as one capture.

    OTLP JSON lines and the sidecar's Parquet are told apart by content. Lines and spans that cannot be read are
    counted and noted in the capture, spans of other programs counted.

    Raises:
        CaptureError: an input does not exist, cannot be read or is empty, or none holds a span of otel_cache.

    """
    tally = Tally()
    builder = CaptureBuilder(tally)
    sources = find_sources(paths, tally)
    for source in sources:
        with open_source(source) as (form, stream):
            read_spans = parquet.read_spans if form == "parquet" else otlp_json.read_spans
            for span in read_spans(stream, source.label, builder.lives.find, tally):
                builder.add(span)
    if not tally.spans:
        raise _nothing_of_ours([source.label for source in sources], tally)
    return builder.build()


def _nothing_of_ours(labels: Sequence[str], tally: Tally) -> CaptureError:
    where = labels[0] if len(labels) == 1 else f"{len(labels)} files ({labels[0]}, ...)"
    read = f"{tally.foreign} of other programs"
    if tally.skipped:
        read += f", {tally.skipped} lines or spans that could not be read"
    notes = "".join(f"\n  {note}" for note in tally.notes()[:3])
    return CaptureError(
        f"{where}: no usable span of otel_cache ({read}). Was the plugin on (`otel-cache run`, or "
        f"OTEL_PYTHON_VLLM_CACHE_ENABLED=true), and is this the file that the sidecar or a collector wrote?{notes}"
    )
