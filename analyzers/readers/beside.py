"""Inputs to batches, one after the other; what was read of a file may be kept beside it as typed Parquet."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from analyzers.readers import typed_parquet, typed_writer
from analyzers.readers.batches import read_batches
from analyzers.readers.columns import Batch
from analyzers.readers.sources import Source
from analyzers.readers.tally import FILE, Progress, Tally
from otel_cache.errors import CaptureError, StorageError, UsageError
from otel_cache.package import VERSION

_PARQUET = b"PAR1"


def read_all(
    sources: Sequence[Source], tally: Tally, progress: Progress, *, cache: bool = False
) -> Iterator[tuple[Batch, str]]:
    """Yield the batches of all `sources`, and what notes call the input of each; `cache` is as in `open_capture`.

    Raises:
        CaptureError: as `read_batches`, but for a file that was found in a folder: that one costs itself, if it
            could be asked for.

    """
    read = 0
    for number, source in enumerate(sources, 1):
        try:
            for batch, what in read_kept(source, tally) if cache else read_batches(source):
                read += sum(frame.height for frame in batch.frames.values())
                yield batch, f"{source.label} {what}"
                progress(read, number, len(sources))
        except CaptureError as error:
            if not source.found or isinstance(error, StorageError):
                raise
            tally.skip(FILE, "passed over", str(error))


def beside(path: Path) -> Path:
    """Return where what was read of `path` is kept: hidden, so that who reads the folder passes over it."""
    return path.with_name(f".{path.name}.otel-cache.parquet")


def read_kept(source: Source, tally: Tally) -> Iterator[tuple[Batch, str]]:
    """Yield what `read_batches` does, from what is kept beside the file, which is made where it is not there or old.

    It is old where the file's size or time of change is another one since, or otel-cache is. What is no file, or is
    Parquet itself, is read as it is; so is a file in a folder that nothing can be written to, and `tally` has a note.

    Raises:
        CaptureError: as `read_batches`.

    """
    path = source.path
    if path is None or not path.is_file() or _is_parquet(path):
        yield from read_batches(source)
        return
    kept, stamp = beside(path), _stamp(path)
    if typed_parquet.stamp_of(kept) == stamp and _is_whole(kept):
        yield from ((batch, "row") for batch in typed_parquet.read(kept, source.label))
        return
    try:
        typed_writer.write((batch for batch, _ in read_batches(source)), str(kept), stamp)
    except UsageError as error:
        tally.note(FILE, f"{source.label}: nothing is kept beside it, so it is read whole each time ({error})")
        yield from read_batches(source)
        return
    yield from ((batch, "row") for batch in typed_parquet.read(kept, source.label))


def _is_whole(kept: Path) -> bool:
    """Whether all of it can be read: what was damaged since is made anew, before anything of it is taken."""
    try:
        for _ in typed_parquet.read(kept, str(kept)):
            pass
    except CaptureError:
        return False
    return True


def _stamp(path: Path) -> str:
    about = path.stat()
    return f"{VERSION} {about.st_size} {about.st_mtime_ns}"


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_PARQUET)) == _PARQUET
    except OSError:
        return False  # whoever reads it says what is wrong
