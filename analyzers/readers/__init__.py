"""All input: files, folders, globs and stdin to one capture."""

from analyzers.readers.capture import open_capture
from analyzers.readers.convert import convert
from analyzers.readers.sources import is_source

__all__ = ["convert", "is_source", "open_capture"]
