"""All input: files, folders, globs and stdin to one capture."""

from analyzers.readers.capture import open_capture

__all__ = ["open_capture"]
