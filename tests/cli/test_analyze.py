"""`otel-cache` as a process: what it prints, where, and its exit codes. No input gives a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_cache.package import VERSION
from otel_cache.semconv import names
from tests.readers import otlp

COMMAND = [sys.executable, "-c", "from analyzers.cli import main; main()"]

SETTINGS = {
    names.VLLM_VERSION: "0.28.0",
    names.GROUPS_KIND: ["mamba", "mamba", "mamba", "full_attention"],
    names.GROUPS_BLOCK_SIZE: [1600] * 4,
    names.GROUPS_WINDOW: [0] * 4,
    names.GROUPS_FLAGGED: [False, False, False, True],
    names.GROUPS_DROPS: [False, False, False, True],
    names.GROUPS_FINE_GRAINED: [False] * 4,
    names.GROUPS_LOOKUP_ORDER: ["3", "0,1,2"],
    names.SCHEDULER_BLOCK_SIZE: 1600,
    names.HASH_BLOCK_SIZE: 1600,
    names.HIT_ALIGNMENT: 1600,
    names.PARTIAL_HITS: False,
    names.HASH_LOOKAHEAD_TOKENS: 0,
    names.PROOF_LIMIT: names.PROOF_LAST_TOKEN,
    names.RETENTION_INTERVAL: "0",
    names.PREFIX_CACHING: True,
    names.NUM_BLOCKS: 400,
    names.HASH_ALGORITHM: "sha256",
    names.MAMBA_CACHE_MODE: "align",
    names.SPECULATIVE_METHOD: "mtp",
    names.SPECULATIVE_TOKENS: 2,
    names.MAX_BATCHED_TOKENS: 8192,
    names.FINGERPRINT_KEY_ID: "k",
}
CAPTURE = otlp.line(otlp.resource(**SETTINGS), [otlp.lookup(1, 1, EVIDENCE_NUMBER=0)])


def run(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    result = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(encoding), done.stderr.decode())
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(CAPTURE)
    return path


def test_the_report_goes_to_stdout(capture: Path) -> None:
    done = run("analyze", capture)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 span, 1 replica, 1 lookup; 0 missing records, 0 skipped lines\n")
    assert "\x1b" not in done.stdout
    assert run("analyze", "-", stdin=CAPTURE).stdout == done.stdout


def test_json_is_one_object_whatever_the_lookups(capture: Path) -> None:
    for lookups, count in (([], 1), (["--lookups", "all"], 1), (["--lookups", "none"], 0)):
        done = run("analyze", capture, "--format", "json", *lookups)
        assert (done.returncode, done.stderr) == (0, "")
        made = json.loads(done.stdout)
        assert len(made["lookups"]) == count
        assert made["tokens"]["prompt"] == made["tokens"]["hit"] + sum(made["tokens"]["lost"].values()) == 11910


def test_what_was_skipped_is_noted_on_stderr(capture: Path) -> None:
    with capture.open("ab") as file:
        file.write(b"junk\n" * 20 + b"[]\n" + CAPTURE[:200])
    done = run("analyze", capture)
    assert done.returncode == 0
    assert "22 skipped lines" in done.stdout.splitlines()[0]
    assert len(done.stderr.splitlines()) == 6
    assert done.stderr.startswith(f"note: {capture} line 2: not JSON (")
    assert done.stderr.splitlines()[-1].endswith("--format json has them all")


def test_output_goes_to_a_file_that_is_no_capture(capture: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("analyze", capture, "--format", "json", "--output", report)
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(report.read_text())["schema_version"] == 1
    assert run("analyze", capture, "--output", capture).returncode == 2
    assert capture.read_bytes() == CAPTURE
    done = run("analyze", capture, "--output", tmp_path / "none" / "report")
    assert done.returncode == 2
    assert done.stderr == f"Error: {tmp_path}/none/report: cannot be written (No such file or directory)\n"


BAD = {
    "missing": (None, "no such file or folder"),
    "empty": (b"", "empty"),
    "binary": (bytes(range(256)) * 40, "no usable span of otel_cache"),
    "foreign": (otlp.line({}, [{}, {}], scope="fastapi"), "(2 of other programs)"),
    "text": (b"hello\nworld\n", "line 1: not JSON"),
    "parquet": (b"PAR1 and then nothing", "damaged Parquet"),
    "torn": (CAPTURE[:300], "no usable span of otel_cache"),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_a_sentence_and_exit_code_2(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "spans"
    if content is not None:
        path.write_bytes(content)
    done = run("analyze", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {path}: ")
    assert why in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["analyze"], "give a capture (PATH), or --example"),
        (["analyze", "x", "--example"], "PATH and --example are both given: leave one of them out"),
        (["analyze", "--example", "--format", "parquet"], "needs --output FILE: it is not written to stdout"),
        (["fetch"], "Missing argument '{jaeger|tempo}'. Choose from: jaeger, tempo\n"),
        (["analyze", "x", "--format", "xml"], "'xml' is not one of"),
        (["analyze", "x", "--lookups", "some"], "'some' is not one of"),
        (["anlyze", "x"], "no such command 'anlyze'; did you mean 'analyze'?"),
        (["frobnicate"], "no such command 'frobnicate'; there are analyze,"),
        (["--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], why: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_help_and_version_are_quick_and_import_nothing_heavy() -> None:
    assert run("--version").stdout == f"otel-cache, version {VERSION}\n"
    for arguments in ([], ["--help"], ["analyze", "-h"], ["run", "--help"], ["sidecar", "--help"], ["lab", "--help"]):
        assert "Example:" in run(*arguments).stdout + run(*arguments).stderr
    script = "import sys; from analyzers.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    script += "sys.exit(bool({'polars', 'msgspec', 'opentelemetry.sdk'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_reader_that_goes_away_is_no_error(capture: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "analyze", str(capture)], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("attempt", range(8))
def test_ctrl_c_ends_quietly_with_130(attempt: int) -> None:
    # Some of these signals come between two reads, where nothing wakes the one that waits.
    with subprocess.Popen([*COMMAND, "analyze", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # It reads what we send, so it is past its imports when the pipe takes more than a pipe holds.
        process.stdin.write(CAPTURE * 200)
        process.stdin.flush()
        time.sleep(attempt * 0.000_5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"Traceback" not in process.stderr.read()


def test_an_id_without_letters_for_it_does_not_end_the_report(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(CAPTURE.replace(b"repeat-0", "répété-日".encode()))
    done = run("analyze", path, "--lookups", "all", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert "répété-\\u65e5" in done.stdout
