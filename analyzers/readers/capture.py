"""Any number of inputs to one capture."""

import io
import os
from collections.abc import Iterator, Sequence

from analyzers.model import Capture
from analyzers.readers import otlp_json, otlp_protobuf, parquet
from analyzers.readers.content import open_content
from analyzers.readers.counters import Point
from analyzers.readers.frames import CaptureBuilder
from analyzers.readers.framing import records
from analyzers.readers.sources import Source, find_sources
from analyzers.readers.spans import FindLife, FlatSpan
from analyzers.readers.tally import FILE, Tally
from otel_cache.errors import CaptureError


def open_capture(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Capture:
    """Read files, folders, globs, `-` (stdin) and Parquet in object storage as one capture; one or several of them.

    What an input holds is told by its content: OTLP as JSON or Protobuf, compressed or not, Parquet, or what Jaeger or
    Tempo let somebody download. Lines and spans that cannot be read are counted and noted in the capture, spans of
    other programs counted.

    Raises:
        CaptureError: an input does not exist, cannot be read or is empty, or none holds a span of otel_cache.

    """
    tally = Tally()
    builder = CaptureBuilder(tally)
    sources = find_sources([paths] if isinstance(paths, str | os.PathLike) else paths, tally)
    for source in sources:
        try:
            for span in _read_spans(source, builder.lives.find, tally):
                builder.add(span)
        except CaptureError as error:
            if not source.found:
                raise
            # Among the files of a folder one that is damaged costs itself.
            tally.skip(FILE, "passed over", str(error))
    if not tally.spans:
        raise _nothing_of_ours([source.label for source in sources], tally)
    return builder.build()


def _read_spans(source: Source, find_life: FindLife, tally: Tally) -> Iterator[FlatSpan | Point]:
    if source.address:
        yield from parquet.read_spans(source.address, source.label, find_life, tally)
        return
    with open_content(source.path, source.label) as content:
        if content.form == "parquet":
            # Parquet is read from its end: what cannot seek is taken into memory.
            seekable = content.stream.seekable() and not content.compressed
            file = content.stream if seekable else io.BytesIO(content.stream.read())
            yield from parquet.read_spans(file, source.label, find_life, tally)
        else:
            read_spans = otlp_protobuf.read_spans if content.form == "messages" else otlp_json.read_spans
            yield from read_spans(records(content, source.label, tally), find_life, tally)


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
