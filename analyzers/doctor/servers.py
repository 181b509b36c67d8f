"""vLLM's servers that run on this host as this user, by their command lines."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACING = "--otlp-traces-endpoint"
CONFIG = "--config"
_MODULE = "vllm.entrypoints.openai.api_server"
_COMMANDS = ("vllm", "vllm.entrypoints.cli.main")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Python's options that take the next word."""


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
    """Whether the process is a server itself, not one that runs another program with the same words."""
    if Path(arguments[0]).name == "vllm":
        return arguments[1:2] == ["serve"]
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            module = next(words, "")
            return module == _MODULE or (module in _COMMANDS and next(words, "") == "serve")
        if word == "-c":
            return False
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return Path(word).name == "vllm" and next(words, "") == "serve"
    return False


def _traced(arguments: Sequence[str]) -> bool | None:
    names = {word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
    if TRACING in names:
        return True
    return None if CONFIG in names else False
