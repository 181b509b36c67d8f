"""`python -m otel_cache.sidecar`: run a sidecar."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from otel_cache.errors import OtelCacheError

INCOMPLETE = 1
"""Exit code of a sidecar that could not write every span."""


class _Once(logging.Filter):
    """Lets each kind of message through once: an exporter repeats itself for as long as a collector is away."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, object]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this message is the first of its kind, or says that it is none of a kind."""
        if hasattr(record, "each_time"):
            return True
        kind = (record.name, record.msg)
        if kind in self._seen:
            return False
        self._seen.add(kind)
        return True


def _given(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("empty: is a variable unset?")
    return text


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; prints help or a mistake, and exits, where the arguments say so."""
    parser = argparse.ArgumentParser(
        prog="python -m otel_cache.sidecar",
        description="Receive records from vLLM's processes, write the evidence and export spans.",
        epilog="Example: python -m otel_cache.sidecar --socket /run/otel-cache/sidecar.sock --out capture.jsonl",
    )
    parser.add_argument("--socket", required=True, type=_given, metavar="PATH", help="Unix socket to listen on")
    parser.add_argument(
        "--out",
        type=_given,
        metavar="FILE",
        help="write every span there: Parquet if it ends in .parquet, else OTLP JSON lines",
    )
    parser.add_argument("--append", action="store_true", help="go on after what FILE holds instead of replacing it")
    parser.add_argument("--endpoint", type=_given, metavar="URL", help="export by OTLP to this endpoint")
    parser.add_argument(
        "--exit-when-idle", type=float, metavar="SECONDS", help="leave so long after the last connection was closed"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing on stderr but errors, and what was lost")
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--written-fd", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sidecar; return its exit code."""
    options = parse(arguments)
    _fill_standard_streams()
    handler = logging.StreamHandler()
    handler.addFilter(_Once())
    logging.basicConfig(
        level=logging.ERROR if options.quiet else logging.WARNING, format="otel-cache: %(message)s", handlers=[handler]
    )
    from otel_cache.sidecar.service import Options, serve

    try:
        complete = serve(Options(**vars(options)))
    except OtelCacheError as error:
        print(f"otel-cache: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if complete else INCOMPLETE


def _fill_standard_streams() -> None:
    """Open what is closed of them: else a file or a socket takes the place, and gets what a library complains of."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
