"""Starting a sidecar: as a child for one command, or as a daemon of its own for the embedded default.

Runs inside vLLM's processes too: standard library only.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from otel_cache.config import ENABLED
from otel_cache.errors import UsageError

DAEMON_IDLE_SECONDS = 10
DAEMON_READY_SECONDS = 15.0
CHILD_READY_SECONDS = 60.0
_FIRST_FREE = 3
"""The first descriptor that is no standard stream."""
NICENESS = 10
"""Of a daemon: what it does can wait until the engine's processes, which share the processors, leave one free."""
# The double fork: whoever starts the daemon is not its parent, so that killing vLLM's process tree spares it. Where
# nobody may change a priority (seccomp, SELinux), it keeps the one that it has.
_DETACH = (
    f"import os,subprocess,sys\ntry:os.nice({NICENESS})\nexcept OSError:pass\nn=subprocess.DEVNULL\n"
    "subprocess.Popen(sys.argv[2:],stdin=n,stdout=n,stderr=n,start_new_session=True,cwd='/',pass_fds=[int(sys.argv[1])])"
)


class Child:
    """A sidecar that was started for one command."""

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: int, written: int) -> None:
        """Hold the process, the write end of the pipe whose end tells it that we are gone, and the one it counts to."""
        self._process = process
        self._lifeline = lifeline
        self._written = written
        self.written = 0
        """Spans in the file, once a sidecar that was started `silent` has been stopped."""

    @property
    def pid(self) -> int:
        """Process id of the sidecar."""
        return self._process.pid

    def stop(self) -> int:
        """Tell the sidecar to take in what has been sent and to leave; return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._written >= 0:
            self.written = int(os.read(self._written, 32) or 0)
            os.close(self._written)
            self._written = -1
        return code


def start_child(
    socket: str,
    out: str | None = None,
    endpoint: str | None = None,
    *,
    append: bool = False,
    silent: bool = False,
    quiet: bool = False,
) -> Child:
    """Start a sidecar in a session of its own, and return when it listens on `socket`.

    With `append` it goes on after what the file holds. It leaves by itself, once nothing is connected, should this
    process die without stopping it. How many spans are in the file it says at its end, unless it is `silent`: then
    it tells whoever stops it. A `quiet` one says errors only, and what was lost.

    Raises:
        UsageError: it did not come up; it has said why on stderr.

    """
    lifeline_read, lifeline = _pipe()
    ready, ready_write = _pipe()
    written, written_write = _pipe() if silent else (-1, -1)
    try:
        arguments = [*_command(socket, out, endpoint, ready_write), "--parent-fd", str(lifeline_read)]
        arguments += ["--append"] if append else []
        arguments += ["--quiet"] if quiet else []
        passed = [ready_write, lifeline_read]
        if silent:
            arguments += ["--written-fd", str(written_write)]
            passed.append(written_write)
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
            pass_fds=passed,
        )
        os.close(ready_write)
        ready_write = -1
        if _wait_ready(ready, CHILD_READY_SECONDS):
            child = Child(process, lifeline, written)
            written = -1
            return child
        process.kill()
        code = process.wait()
        os.close(lifeline)
        raise UsageError(f"the sidecar did not start (exit code {code}); what it wrote above says why")
    finally:
        for fd in (lifeline_read, ready, ready_write, written, written_write):
            if fd >= 0:
                os.close(fd)


def ensure_daemon(socket: str, out: str | None = None) -> bool:
    """Return when a sidecar listens on `socket`; start one where none does, whoever else tries the same.

    The daemon belongs to no process tree and leaves when no process has been connected for a while.

    Returns:
        Whether it was started here: one that was there before writes where it was told to, not to `out`.

    Raises:
        UsageError: `out` cannot be written, or the daemon did not come up in time.

    """
    if is_listening(socket):
        return False
    if out and not os.access(Path(out).absolute().parent, os.W_OK):
        raise UsageError(f"{out} cannot be written: its folder is missing, or may not be written to")
    Path(socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with socket_lock(socket) as locked:
        if not locked:
            raise UsageError(f"somebody has been starting a sidecar on {socket} for {DAEMON_READY_SECONDS:.0f} s")
        if is_listening(socket):
            return False
        ready, ready_write = _pipe()
        try:
            command = _command(socket, out, None, ready_write)
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _DETACH, str(ready_write), *command,
                 "--append", "--exit-when-idle", str(DAEMON_IDLE_SECONDS)],
                stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[ready_write], check=True,
            )  # fmt: skip
            os.close(ready_write)
            ready_write = -1
            if not _wait_ready(ready, DAEMON_READY_SECONDS):
                named = f" --out {out} --append" if out else ""
                raise UsageError(
                    f"the sidecar did not come up on {socket}: "
                    f"run `otel-cache sidecar --socket {socket}{named}` to see why"
                )
            return True
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(f"the sidecar cannot be started: {error}") from error
        finally:
            for fd in (ready, ready_write):
                if fd >= 0:
                    os.close(fd)


def default_socket() -> str:
    """Return the path of this user's own socket; its folder is made, for this user only, where it is missing.

    Raises:
        UsageError: the folder belongs to somebody else, or others may write to it.

    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "otel-cache" if runtime else Path(f"/tmp/otel-cache-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder} for the socket: {error.strerror or error}") from error
    # In a folder that all users share, somebody else may have put this name there first.
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(f"{folder} is not a folder that user {os.getuid()} alone can write to: remove it")
    return str(folder / "sidecar.sock")


def is_listening(path: str) -> bool:
    """Return whether somebody listens on the Unix socket `path`, be it one who is too busy to answer now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True  # as many wait to be let in as may
        except OSError:
            return False
    return True


@contextlib.contextmanager
def socket_lock(path: str, seconds: float = DAEMON_READY_SECONDS) -> Iterator[bool]:
    """Hold the lock on who listens on the socket `path`; yield False where others held it for `seconds`."""
    # POSIX locks, unlike flock's, are not inherited by a fork of vLLM.
    with os.fdopen(os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.02)
            else:
                yield True
                return


def _pipe() -> tuple[int, int]:
    """Return a pipe beyond the standard streams: where those are closed, a child would find its own in its place."""
    ends = os.pipe()
    try:
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return read, write


def _command(socket: str, out: str | None, endpoint: str | None, ready: int) -> list[str]:
    # -P: what lies in the working folder of vLLM must not take the place of a module.
    command = [sys.executable, "-P", "-m", "otel_cache.sidecar", "--socket", str(Path(socket).absolute())]
    if out:
        command += ["--out", str(Path(out).absolute())]
    if endpoint is not None:
        command += ["--endpoint", endpoint]
    return [*command, "--ready-fd", str(ready)]


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop(ENABLED, None)
    # The sidecar finds this package even where vLLM has it from its working folder.
    root = str(Path(__file__).parents[2])
    # What `opentelemetry-instrument` put there would instrument the sidecar itself.
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and not _automatic(path)]
    if root not in paths:
        paths.append(root)
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _automatic(path: str) -> bool:
    return Path(path).parts[-3:] == ("opentelemetry", "instrumentation", "auto_instrumentation")


def _wait_ready(fd: int, seconds: float) -> bool:
    readable, _, _ = select.select([fd], [], [], seconds)
    return bool(readable) and os.read(fd, 1) != b""
