"""Runs a command with a sidecar beside it: its environment, its signals, its exit code."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_cache import config
from otel_cache.errors import UsageError
from otel_cache.sidecar.launch import start_child
from otel_cache.sidecar.status import query_status

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILLED = 128
_FROM_KERNEL = 0x80


def run_traced(
    command: Sequence[str], out: str | None, endpoint: str | None, *, append: bool = False, quiet: bool = False
) -> int:
    """Run `command` traced; return its exit code, 128 + n where signal n ended it, 127 or 126 where it cannot start.

    With `append` the sidecar goes on after what the file holds; a `quiet` one says errors only.

    Raises:
        UsageError: the file cannot be written, or the sidecar did not start; the command was not started then.

    """
    if out is not None:
        check_out(out)
    if (code := _check_command(command[0])) is not None:
        return code
    # A folder of its own, with a short name: the path of a Unix socket has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="otel-cache-")
    try:
        path = str(Path(folder) / "s")
        sidecar = start_child(path, out, endpoint, append=append, quiet=quiet)
        try:
            code = _run(command, traced_environment(command, path, os.environ))
            nobody = not quiet and not _anybody_connected(path)
        finally:
            stopped = sidecar.stop()
        if nobody:
            print(f"otel-cache: no vLLM process connected{why_none(code, os.environ)}", file=sys.stderr)
        if stopped != 0:
            print(f"otel-cache: the sidecar ended with exit code {stopped}: spans may be missing", file=sys.stderr)
        return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _anybody_connected(path: str) -> bool:
    # The sidecar takes connections in their order: by the second question it has read what came before the first.
    try:
        return any(query_status(path).processes_seen for _ in range(2))
    except UsageError:
        return True  # not known: what became of the sidecar is said by its exit code


def why_none(code: int, environ: Mapping[str, str]) -> str:
    """Return, as the end of a sentence, why no process connected for a command that ended with `code`."""
    if (variable := config.forbidden_by(environ)) is not None:
        return f": {variable}={environ[variable]} keeps the plugin off; unset it"
    if code:
        return f": the command failed with exit code {code}"
    return " (is otel-cache installed in its environment?)"


def check_out(out: str) -> None:
    """Check that a file can be written at `out`.

    Raises:
        UsageError: its folder is missing or not writable, or it is a folder.

    """
    path = Path(out)
    if path.is_dir():
        raise UsageError(f"--out {out} is a folder: name a file in it, such as {path / 'capture.jsonl'}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {path.absolute().parent}: make it first")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"--out {out} cannot be written: permission denied")


def traced_environment(command: Sequence[str], socket_path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with what turns the instrumentation on and leads it to the socket."""
    environment = {**environ, config.ENABLED: "true", config.SOCKET: socket_path}
    if (plugins := environ.get(config.PLUGINS)) is not None:
        environment[config.PLUGINS] = config.with_plugin(plugins)
    port = _port(command)
    if port and not environ.get(config.REPLICA_ID):
        environment[config.REPLICA_ID] = f"{socket.gethostname()}:{port}"
    return environment


def _port(command: Sequence[str]) -> str | None:
    for word, following in zip(command, [*command[1:], ""], strict=True):
        value = following if word == "--port" else word.removeprefix("--port=") if word.startswith("--port=") else ""
        if value.isdigit():
            return value
    return None


def _check_command(name: str) -> int | None:
    """Return None where the command can be run, else the shell's exit code for that, having said why."""
    if shutil.which(name) is not None:
        return None
    if os.sep in name and Path(name).exists():
        print(f"otel-cache: {name} cannot be executed: it is not a program, or you may not run it", file=sys.stderr)
        return NOT_EXECUTABLE
    print(f"otel-cache: there is no command {name}", file=sys.stderr)
    return NOT_FOUND


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    awaited = {*PASSED_ON, signal.SIGCHLD}
    # Blocked, so that they are taken with who sent them: Ctrl-C reaches the command from the terminal already.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        try:
            process = subprocess.Popen(
                command, env=dict(environment), preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
            )
        except OSError as error:
            print(f"otel-cache: {command[0]} cannot be executed: {error.strerror or error}", file=sys.stderr)
            return NOT_EXECUTABLE
        while (code := process.poll()) is None:
            received = signal.sigtimedwait(awaited, 1.0)
            if received is not None and received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
                process.send_signal(received.si_signo)
        return code if code >= 0 else KILLED - code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
