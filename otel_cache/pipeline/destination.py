"""Where the spans of this process go: what its environment asks for, and whether the sidecar that is there does it."""

import os
import re
from pathlib import Path

from otel_cache.config import Config
from otel_cache.errors import UsageError
from otel_cache.sidecar.exporters import exports_to
from otel_cache.sidecar.launch import default_socket
from otel_cache.sidecar.status import Status, query_status

ANSWER_SECONDS = 1.0


def describe_destination(config: Config) -> str:
    """Return in words where spans go: file, endpoint and socket, as far as this process's environment tells."""
    if config.socket is not None:
        return f"its spans go to the sidecar on {config.socket}"
    try:
        ways = [f"the file {Path(config.out).absolute()}"] if config.out else []
        ways += [endpoint] if (endpoint := exports_to(None, config.out)) else []
        if not ways:
            return "its spans go nowhere: export is turned off, and no file is named"
        return f"its spans go to {' and '.join(ways)}, through the sidecar on {default_socket()}"
    except (OSError, UsageError) as error:
        return f"its spans go nowhere: {error}"


def find_difference(config: Config, socket: str) -> str:
    """Return what the sidecar on `socket` does otherwise than `config` asks for, empty where it does not answer."""
    if config.socket is not None and not config.out:
        return ""
    try:
        return compare(config, query_status(socket, ANSWER_SECONDS))
    except UsageError:
        return ""


def compare(config: Config, status: Status) -> str:
    """Return what a sidecar does otherwise than `config` asks for; empty: nothing.

    The file is compared where one is named; the endpoint where the sidecar is this user's own, since one on a named
    socket has an environment of its own.
    """
    found = []
    if config.out and not _is_made_for(config.out, status.file):
        found.append(f"writes to {status.file or 'no file'}, not to {Path(config.out).absolute()}")
    wanted = exports_to(None, config.out)
    if config.socket is None and wanted and wanted != status.endpoint:
        found.append(f"exports to {status.endpoint or 'nowhere'}, not to {wanted}")
    return " and ".join(found)


def _is_made_for(out: str, file: str) -> bool:
    """Whether a sidecar that is told to write to `out` may write to `file`: of Parquet it takes the next free name."""
    wanted, actual = Path(os.path.realpath(out)), Path(os.path.realpath(file))
    if not file or wanted == actual:
        return bool(file)
    numbered = re.escape(wanted.stem) + r"\.\d+\.parquet"
    return wanted.suffix == ".parquet" and wanted.parent == actual.parent and bool(re.fullmatch(numbered, actual.name))
