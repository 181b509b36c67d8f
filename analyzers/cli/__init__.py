"""The command `otel-cache`."""

from analyzers.cli.lacking import without

try:
    from analyzers.cli.main import main
except ModuleNotFoundError as error:
    main = without(error)

__all__ = ["main"]
