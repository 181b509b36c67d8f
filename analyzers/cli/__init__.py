"""The command `otel-cache`."""

from analyzers.cli.main import main

__all__ = ["main"]
