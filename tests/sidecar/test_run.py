"""`otel-cache run` as a process: exit codes, signals, and a complete file."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.cli.supervise import traced_environment
from otel_cache.semconv import names

from .support import SPANS, named, read_lines

RUN = [str(Path(sys.executable).with_name("otel-cache")), "run"]
ROOT = Path(__file__).parents[2]
SEND = """
import os, sys
sys.path.insert(0, {tests!r})
from sidecar.support import Peer, hello, whole_request
Peer(os.environ["OTEL_PYTHON_VLLM_CACHE_SOCKET"], hello()).send(*whole_request())
"""


def run(*arguments: str, **options):
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, **options)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["no-such-command"], 127),
        (["/etc/hostname"], 126),
    ],
)
def test_the_exit_code_is_the_command_s(tmp_path, words, code):
    assert run("--out", str(tmp_path / "o.jsonl"), "--", *words).returncode == code


def test_standard_input_may_be_closed(tmp_path):
    out = tmp_path / "out.jsonl"
    words = ["sh", "-c", 'exec "$@" <&-', "sh", *RUN, "--out", str(out), "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert out.exists()


@pytest.mark.parametrize("option", ["--out", "--endpoint"])
def test_an_option_that_is_empty_is_refused(option):
    done = run(option, "", "--", "true")

    assert done.returncode == 2
    assert "is empty: is a variable unset?" in done.stderr


def test_the_file_is_complete(tmp_path):
    out = tmp_path / "o.jsonl"
    result = run("--out", str(out), "--", sys.executable, "-c", SEND.format(tests=str(ROOT / "tests")))

    assert result.returncode == 0, result.stderr
    assert len(named(read_lines(out), names.REQUEST)) == 1
    assert result.stderr == f"otel-cache: {SPANS} spans written to {out}\n"


@pytest.mark.parametrize(
    ("variables", "words", "why"),
    [
        ({}, ["true"], " (is otel-cache installed in its environment?)"),
        ({}, ["sh", "-c", "exit 7"], ": the command failed with exit code 7"),
        ({}, ["sh", "-c", "kill -TERM $$"], ": the command failed with exit code 143"),
        *(
            ({name: value}, ["sh", "-c", f"exit {code}"], f": {name}={value} keeps the plugin off; unset it")
            for name, value in [
                ("OTEL_SDK_DISABLED", "true"),
                ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "flask,vllm_cache"),
                ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "*"),
            ]
            for code in (0, 7)
        ),
    ],
)
def test_why_no_process_connected(tmp_path, variables, words, why):
    done = run("--out", str(tmp_path / "o.jsonl"), "--", *words, env=os.environ | variables)
    assert f"otel-cache: no vLLM process connected{why}\n" in done.stderr
    assert done.stderr.count("no vLLM process connected") == 1


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_whose_process_connected_is_not_suspected(tmp_path, code):
    script = f"{SEND.format(tests=str(ROOT / 'tests'))}\nsys.exit({code})"
    done = run("--out", str(tmp_path / "o.jsonl"), "--", sys.executable, "-c", script)
    assert (done.returncode, "connected" in done.stderr) == (code, False)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_earlier_capture_stays_until_spans_come(tmp_path, suffix):
    out = tmp_path / f"o.{suffix}"
    send = [sys.executable, "-c", SEND.format(tests=str(ROOT / "tests"))]
    first = run("--out", str(out), "--", *send)
    before = out.read_bytes()
    for words in (["true"], ["false"]):
        done = run("--out", str(out), "--", *words)
        assert f"0 spans written to {out}, which holds what it held before" in done.stderr
        assert out.read_bytes() == before
    out.write_bytes(before * 3)
    again = run("--out", str(out), "--", *send)
    assert first.stderr == again.stderr == f"otel-cache: {SPANS} spans written to {out}\n"
    assert len(out.read_bytes()) < len(before) * 2
    assert list(tmp_path.iterdir()) == [out]


def test_append_goes_on_after_what_is_there(tmp_path):
    out = tmp_path / "o.jsonl"
    send = [sys.executable, "-c", SEND.format(tests=str(ROOT / "tests"))]
    run("--out", str(out), "--", *send)
    before = out.read_bytes()
    run("--out", str(out), "--append", "--", *send)
    assert out.read_bytes().startswith(before)
    assert len(named(read_lines(out), names.REQUEST)) == 2


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_run_without_spans_leaves_an_empty_capture_where_none_was(tmp_path, suffix):
    out = tmp_path / f"o.{suffix}"
    assert "before" not in run("--out", str(out), "--", "true").stderr
    assert out.exists()
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_sidecar_left_stays_until_spans_come(tmp_path):
    part = tmp_path / "o.parquet.part.jsonl"
    part.write_text("{}\n")
    run("--out", str(tmp_path / "o.parquet"), "--", "true")
    assert part.read_text() == "{}\n"


@pytest.mark.parametrize("out", ["missing/o.jsonl", "."])
def test_a_file_that_cannot_be_is_said_before_the_command_starts(tmp_path, out):
    result = run("--out", str(tmp_path / out), "--", "touch", str(tmp_path / "started"))

    assert result.returncode == 2
    assert "--out" in result.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("words", [["-q", "run"], ["run", "-q"], ["run", "--quiet"]])
def test_quiet(words, tmp_path):
    """Nothing but what the command says; behind its name an option is the command's."""
    spans = [RUN[0], *words, "--out", str(tmp_path / "o.jsonl"), "--"]
    done = subprocess.run([*spans, "sh", "-c", 'echo "$1" >&2', "sh", "-q"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "-q\n")
    assert (tmp_path / "o.jsonl").exists()
    done = subprocess.run([*spans, "no-such-command"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (127, "otel-cache: there is no command no-such-command\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(tmp_path, number):
    script = f"trap 'echo got; exit 3' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    command = [*RUN, "--out", str(tmp_path / "o.jsonl"), "--", "sh", "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=30)

    assert (process.returncode, output) == (3, "got\n")


def test_the_environment_leads_to_the_sidecar():
    environ = {"VLLM_PLUGINS": "lora", "PATH": "/bin"}
    environment = traced_environment(["vllm", "serve", "m", "--port", "8123"], "/tmp/s", environ)

    assert environment["OTEL_PYTHON_VLLM_CACHE_ENABLED"] == "true"
    assert environment["OTEL_PYTHON_VLLM_CACHE_SOCKET"] == "/tmp/s"
    assert environment["VLLM_PLUGINS"] == "lora,otel_cache"
    assert environment["OTEL_PYTHON_VLLM_CACHE_REPLICA_ID"].endswith(":8123")
    plain = traced_environment(["vllm", "serve", "--port=9"], "/tmp/s", {"OTEL_PYTHON_VLLM_CACHE_REPLICA_ID": "mine"})
    assert plain["OTEL_PYTHON_VLLM_CACHE_REPLICA_ID"] == "mine"
    assert "VLLM_PLUGINS" not in plain


def test_ctrl_c_reaches_the_command_once_and_spares_the_sidecar(tmp_path):
    out = tmp_path / "o.jsonl"
    script = (
        "n=0; trap 'n=$((n+1))' INT; echo ready; i=0; while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; exit $n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(RUN[0], [*RUN, "--out", str(out), "--", "bash", "-c", script])
    while b"ready" not in os.read(terminal, 100):
        pass
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)

    assert os.waitstatus_to_exitcode(status) == 1
    assert out.exists()
