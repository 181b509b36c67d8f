"""Daemons: one per socket, of nobody's process tree, gone when idle."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from otel_cache.errors import UsageError
from otel_cache.semconv import names
from otel_cache.sidecar import launch
from otel_cache.sidecar.launch import default_socket, ensure_daemon, is_listening, start_child

from .support import SPANS, Peer, hello, named, read_lines, wait_until, whole_request

ENSURE = "import sys;from otel_cache.sidecar.launch import ensure_daemon;ensure_daemon(*sys.argv[1:])"
START = """
import sys, time
from otel_cache.sidecar.launch import start_child
print(start_child(*sys.argv[1:]).pid, flush=True)
time.sleep(60)
"""


CLOSED = """
import os, sys
closed, way, path, out = sys.argv[1:]
for stream in closed:
    os.close(int(stream))
from otel_cache.sidecar import launch
if way == "daemon":
    os._exit(0 if launch.ensure_daemon(path, out) else 3)
child = launch.start_child(path, out, silent=True)
try:
    named = [os.readlink(f"/proc/{child.pid}/fd/{stream}") for stream in closed]
finally:
    code = child.stop()
os._exit(code or (0 if named == [os.devnull] * len(closed) else 4))
"""


def daemons(path: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "otel_cache.sidecar" in (process.info["cmdline"] or []) and path in process.info["cmdline"]
    ]


def test_many_processes_start_one_daemon(socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    starters = [subprocess.Popen([sys.executable, "-c", ENSURE, socket_path, str(out)]) for _ in range(4)]
    try:
        assert [starter.wait(60) for starter in starters] == [0] * 4
        (daemon,) = daemons(socket_path)
        assert daemon.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
        assert os.getsid(daemon.pid) != os.getsid(0)
        assert daemon.cwd() == "/"
        assert daemon.nice() > psutil.Process().nice()
        assert "--exit-when-idle" in daemon.cmdline()
        peer = Peer(socket_path, hello())
        peer.send(*whole_request())
        peer.close()
        wait_until(lambda: named(read_lines(out), names.REQUEST))
    finally:
        for process in daemons(socket_path):
            process.terminate()
            process.wait(30)
    assert not is_listening(socket_path)


def test_a_listening_sidecar_is_used(start, socket_path, tmp_path):
    start(tmp_path / "out.jsonl")
    ensure_daemon(socket_path, str(tmp_path / "other.jsonl"))

    assert len(daemons(socket_path)) == 1
    assert not (tmp_path / "other.jsonl").exists()


def test_a_daemon_that_cannot_start_is_an_error(socket_path, tmp_path):
    with pytest.raises(UsageError, match="its folder is missing"):
        ensure_daemon(socket_path, str(tmp_path / "missing" / "out.jsonl"))
    with pytest.raises(UsageError, match="did not come up"):
        ensure_daemon(socket_path, str(tmp_path))


@pytest.mark.parametrize("gone", ["nothing", "socket", "folder"])
def test_a_sidecar_leaves_when_idle(socket_path, tmp_path, gone):
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "otel_cache.sidecar", "--socket", socket_path, "--out", str(out)]
    sidecar = subprocess.Popen([*command, "--exit-when-idle", "0.1"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: is_listening(socket_path))
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    if gone == "socket":
        Path(socket_path).unlink()
    elif gone == "folder":
        shutil.rmtree(Path(socket_path).parent)
    peer.close()

    assert sidecar.wait(20) == 0
    assert f"{SPANS} spans written" in sidecar.stderr.read()
    sidecar.stderr.close()
    assert not Path(socket_path).exists()


@pytest.mark.parametrize("way", ["child", "daemon"])
@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "02", "12", "012"])
def test_standard_streams_may_be_closed(socket_path, tmp_path, way, closed):
    """None of the sidecar's own pipes and files takes their place."""
    command = [sys.executable, "-c", CLOSED, closed, way, socket_path, str(tmp_path / "out.jsonl")]
    try:
        assert subprocess.run(command, timeout=60).returncode == 0
        assert len(daemons(socket_path)) == (way == "daemon")
        assert (tmp_path / "out.jsonl").exists()
    finally:
        for process in daemons(socket_path):
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize("error", ["PermissionError", "OSError"])
def test_a_daemon_that_may_not_yield_is_started_all_the_same(socket_path, tmp_path, monkeypatch, error):
    refuse = f"import os\ndef refuse(_): raise {error}(1, 'no')\nos.nice=refuse\n"
    monkeypatch.setattr(launch, "_DETACH", refuse + launch._DETACH)
    try:
        assert ensure_daemon(socket_path, str(tmp_path / "out.jsonl"))
        (daemon,) = daemons(socket_path)
        assert daemon.nice() == psutil.Process().nice()
    finally:
        for process in daemons(socket_path):
            process.terminate()
            process.wait(30)


def test_a_silent_child_leaves_it_to_its_starter_to_say_what_was_written(socket_path, tmp_path, capfd):
    child = start_child(socket_path, str(tmp_path / "out.jsonl"), silent=True)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    peer.close()

    assert (child.stop(), child.stop()) == (0, 0)
    assert child.written == SPANS
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("silent", [True, False])
def test_a_child_that_none_connected_to_leaves_that_to_its_starter(socket_path, tmp_path, capfd, silent):
    child = start_child(socket_path, str(tmp_path / "out.jsonl"), silent=silent)
    assert child.stop() == 0
    assert "no vLLM process connected" not in capfd.readouterr().err


def test_a_child_outlives_its_starter_only_until_it_is_idle(socket_path, tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", START, socket_path, str(tmp_path / "o")], stdout=subprocess.PIPE)
    pid = int(starter.stdout.readline())
    peer = Peer(socket_path, hello())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    peer.send(*whole_request())
    wait_until(lambda: named(read_lines(tmp_path / "o"), names.REQUEST))
    peer.close()

    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 30)


def test_the_sidecar_is_not_instrumented_and_finds_its_package(socket_path, tmp_path, monkeypatch):
    shadow = tmp_path / "lane"
    shadow.mkdir()
    (shadow / "logging.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(shadow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_ENABLED", "true")
    child = start_child(socket_path, "out.jsonl")
    environment = psutil.Process(child.pid).environ()

    assert child.stop() == 0
    assert "OTEL_PYTHON_VLLM_CACHE_ENABLED" not in environment
    assert environment["PYTHONPATH"].startswith(str(tmp_path))
    assert (shadow / "out.jsonl").exists()


def test_the_default_socket_is_this_user_s_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_socket() == str(tmp_path / "otel-cache" / "sidecar.sock")
    assert (tmp_path / "otel-cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "otel-cache").chmod(0o777)
    with pytest.raises(UsageError, match="alone"):
        default_socket()


def test_launch_needs_only_the_standard_library():
    code = "import sys;import otel_cache.sidecar.launch;print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"msgspec", "grpc", "opentelemetry", "polars", "click", "vllm"} & set(loaded)
