"""vLLM's servers that run on this host as this user, by their command lines."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACING = "--otlp-traces-endpoint"
CONFIG = "--config"
_MODULE = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class Server:
    """A server; `traced`: it was started with vLLM's own tracing; None: a configuration file may say so."""

    pid: int
    traced: bool | None


def running_servers(proc: Path = Path("/proc")) -> Iterator[Server]:
    """Yield the servers; a process that ends meanwhile, or that belongs to somebody else, is passed over."""
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if _is_server(arguments):
            yield Server(int(folder.name), _traced(arguments))


def _is_server(arguments: Sequence[str]) -> bool:
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-m" and following == _MODULE:
            return True
        if Path(word).name == "vllm" and following == "serve":
            return True
    return False


def _traced(arguments: Sequence[str]) -> bool | None:
    names = {word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
    if TRACING in names:
        return True
    return None if CONFIG in names else False
