"""What is said where a command's packages are not installed: the plugin alone, beside vLLM, does without them."""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from otel_cache.errors import OtelCacheError

OWN = ("analyzers", "otel_cache")


def what_is_lacking(error: ModuleNotFoundError) -> str:
    """Return a sentence on the package that is not installed.

    Raises:
        ModuleNotFoundError: `error`, where it is one of our own modules that is missing: that is a fault.

    """
    if (error.name or "").partition(".")[0] in OWN:
        raise error
    return (
        f"Error: {error.name} is not installed here; `pip install otel-cache` brings all that this command needs "
        "(where the plugin alone was installed, vLLM can be traced, and no more)"
    )


def without(error: ModuleNotFoundError) -> Callable[..., None]:
    """Return what stands for the command line where that lacks a package itself.

    Raises:
        ModuleNotFoundError: as above.

    """
    says = what_is_lacking(error)

    def main(arguments: Sequence[str] | None = None) -> NoReturn:
        print(says, file=sys.stderr)
        sys.exit(OtelCacheError.exit_code)

    return main
