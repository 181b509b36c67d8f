"""What a clumsy or hostile user does to the command line: no traceback, nothing overwritten, no escape sequence."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from analyzers.cli.main import commands
from otel_cache.errors import UsageError
from otel_cache.semconv import names
from tests.cli.test_analyze import CAPTURE, COMMAND, SETTINGS, run
from tests.cli.test_habits import EVERY, SPELLINGS, written_by
from tests.readers import otlp

ESCAPE = "\x1b[31m"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A folder with one capture in it."""
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "spans.jsonl").write_bytes(CAPTURE)
    return folder


@pytest.mark.parametrize("named", ["file", "folder", "pattern", "hard link", "symbolic link"])
def test_a_report_never_replaces_its_capture(capture: Path, tmp_path: Path, named: str) -> None:
    """However the capture is named, and however the output is."""
    file = capture / "spans.jsonl"
    output = file
    if named.endswith("link"):
        output = tmp_path / "link"
        (output.symlink_to if named.startswith("symbolic") else output.hardlink_to)(file)
    given = {"folder": capture, "pattern": capture / "*.jsonl"}.get(named, file)
    done = run("analyze", given, "--output", output)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--output {output} is one of the inputs ({given})" in done.stderr
    assert file.read_bytes() == CAPTURE


@pytest.mark.parametrize("verb", ["analyze", "convert"])
def test_nor_the_file_that_is_stdin(capture: Path, verb: str) -> None:
    file = capture / "spans.jsonl"
    with file.open("rb") as opened:
        words = [*COMMAND, verb, "-", "--output", str(file)]
        done = subprocess.run(words, stdin=opened, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is one of the inputs (-)" in done.stderr
    assert file.read_bytes() == CAPTURE


def inputs() -> Iterator[tuple[str, str]]:
    """Yield each command that writes a file, and each parameter of it that may be a file that it reads."""
    for name, command in EVERY.items():
        for each in command.params if written_by(command) and name not in LIVE else ():
            if isinstance(each.type, click.Path) and each.type.file_okay and not {*each.opts} & {*SPELLINGS}:
                assert each.name
                yield name, each.name


LIVE = ("run", "sidecar")
"""What they read is no file."""


@pytest.mark.parametrize(("name", "parameter"), list(inputs()))
def test_no_command_writes_over_what_it_reads(name: str, parameter: str, capture: Path) -> None:
    """Whatever command has an option for a file to write, and whichever of its parameters is the same file."""
    read, other = capture / "spans.jsonl", capture.parent / "other"
    other.write_bytes(CAPTURE)
    command = EVERY[name]
    (option,) = written_by(command)
    words = [*name.split(), option, str(read), *(["--format", "text"] if name in ("diff", "check") else [])]
    for each in command.params:
        path = str(read if each.name == parameter else other)
        if isinstance(each, click.Argument):
            choices = {click.Path: path, click.Choice: next(iter(getattr(each.type, "choices", [""])))}
            words.append(choices.get(type(each.type), "http://localhost:1"))
        elif each.name == parameter or (each.required and option not in each.opts):
            words += [each.opts[0], path]
    done = CliRunner().invoke(commands, words, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f"{option} {read} is one of the inputs ({read}); give another file"
    assert read.read_bytes() == CAPTURE


def test_nor_does_what_is_written_beside_a_report(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.cli.analyze.MAX_JSON_LOOKUPS", 0)
    read = (capture / "spans.jsonl").rename(capture / "a.lookups.parquet")
    words = ["analyze", str(read), "--output", str(capture / "a.json")]
    done = CliRunner().invoke(commands, words, standalone_mode=False)
    assert "is one of the inputs" in str(done.exception)
    assert read.read_bytes() == CAPTURE
    assert [path.name for path in capture.iterdir()] == [read.name]


def test_a_report_may_replace_another(capture: Path) -> None:
    """Also where an input is not there, or an option names something else."""
    report = capture.parent / "report.txt"
    for _ in range(2):
        assert run("analyze", capture, "--output", report).returncode == 0
    assert "no such file" in run("analyze", "none", "--output", report).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", f"no{ESCAPE}.jsonl"],
        ["analyze", f"no{ESCAPE}*.jsonl"],
        ["lab", "run", f"no{ESCAPE}", "--out", "x.jsonl"],
        ["run", "--out", f"no{ESCAPE}/x.jsonl", "--", "true"],
        [f"analy{ESCAPE}ze"],
    ],
)
def test_messages_carry_no_escape_sequences(arguments: list[str], tmp_path: Path) -> None:
    """What a file is called does not steer the terminal."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "x" * 300],
        ["analyze", ""],
        ["lab", "run", "x" * 300, "--out", "x.jsonl"],
        ["run", "--out", "x" * 300, "--", "true"],
        ["run", "--endpoint", "ftp://collector", "--", "true"],
        ["run", "--endpoint", "nonsense", "--", "true"],
        ["run", "--endpoint", "http://", "--", "true"],
        ["sidecar", "--socket", "missing/folder/s"],
        ["sidecar", "--exit-when-idle", "-1"],
    ],
)
def test_impossible_arguments(arguments: list[str], tmp_path: Path) -> None:
    """A sentence, exit code 2, and nothing made."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_closed_or_full_standard_output(capture: Path) -> None:
    """Nowhere to print to is an error, not a traceback."""
    command = [sys.executable, "-c", "import sys; sys.stdout = None; from analyzers.cli import main; main()"]
    closed = subprocess.run([*command, "analyze", capture], capture_output=True, text=True, timeout=60)
    with Path("/dev/full").open("w") as full:
        refused = subprocess.run(
            [*COMMAND, "analyze", capture], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    for done in (closed, refused):
        assert done.returncode == 2
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr


SPEAKING = {
    "analyze": ["analyze", "spans.jsonl"],
    "analyze to a file": ["analyze", "spans.jsonl", "--format", "json", "--output", "report"],
    "convert": ["convert", "spans.jsonl", "--output", "report"],
    "diff": ["diff", "spans.jsonl", "spans.jsonl"],
    "explain": ["explain", "repeat-0", "spans.jsonl"],
    "worksheet": ["worksheet", "--prompt-tokens", "9", "--vllm-version", "9.9"],
    "an error": ["analyze", "none"],
    "wrong usage": ["analyze", "--none"],
}


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "2>&- <&-"])
@pytest.mark.parametrize("words", SPEAKING.values(), ids=SPEAKING)
def test_what_cannot_be_said_costs_nothing(words: list[str], stderr: str, capture: Path) -> None:
    """Notes on a stderr that is closed or full: the result is there, and the exit code is the same."""
    with (capture / "spans.jsonl").open("ab") as file:
        file.write(b"junk\n")
    output = capture / "report"
    results = []
    for redirected in ("", stderr):
        output.unlink(missing_ok=True)
        shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *COMMAND, *words]
        done = subprocess.run(shell, capture_output=True, timeout=60, cwd=capture)
        assert not redirected or done.stderr == b""
        results.append((done.returncode, done.stdout, output.read_bytes() if output.exists() else b""))
    assert results[0] == results[1]
    assert results[0][0] == 2 or results[0][1] or results[0][2]


def test_a_closed_standard_input(capture: Path) -> None:
    """A sentence where it is what is to be read."""
    for words, code, said in (("-", 2, "Error: stdin: closed"), ("spans.jsonl", 0, "")):
        shell = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "analyze", words]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=60, cwd=capture)
        assert (done.returncode, done.stderr[: len(said) or None]) == (code, said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_takes_but_the_beginning(unbuffered: str) -> None:
    """What comes behind the part that went through is missed, whatever Python does with its output."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    words = [*COMMAND, "analyze", "--example", "--format", "html"]
    with subprocess.Popen(words, stdout=writer, stderr=subprocess.PIPE, env=environment) as process:
        os.close(writer)
        assert os.read(reader, 10) == b"<!DOCTYPE "
        os.close(reader)
        assert process.wait(60) == 141
        assert process.stderr
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("name", "damaged"),
    [(names.HASH_BLOCK_SIZE, 2**62), (names.PREFIX_CACHING, 0), (names.GROUPS_KIND, 7), (names.HIT_ALIGNMENT, None)],
)
def test_a_capture_from_a_damaged_resource(tmp_path: Path, name: str, damaged: object) -> None:
    """A number that no model has, a flag that is none, a list that is none, nothing: the attribute is named."""
    file = tmp_path / "spans.jsonl"
    lookup = otlp.lookup(1, 1, EVIDENCE_NUMBER=0)
    file.write_bytes(otlp.line(otlp.resource(**SETTINGS | {name: damaged}), [lookup]))
    done = run("analyze", file)
    assert done.returncode == 2
    assert name in done.stderr


def test_lab_bounds(tmp_path: Path) -> None:
    """Numbers that would fill the machine are impossible values."""
    for number, line in enumerate(
        (
            "engine: {groups: [{kind: mamba, layers: 100000000}]}",
            "replicas: 100000000\nengine: {groups: [{kind: full_attention}]}",
            "engine: {num_gpu_blocks: 1000000000000, groups: [{kind: full_attention}]}",
            "engine: {block_size: 99999999999999999999999, groups: [{kind: full_attention}]}",
        )
    ):
        scenario = tmp_path / f"{number}.yaml"
        scenario.write_text(line + "\nrequests: [{id: a, prompt: [{segment: a, tokens: 9}]}]\n")
        done = run("lab", "run", scenario, "--out", tmp_path / "spans.jsonl")
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert not os.path.lexists(tmp_path / "spans.jsonl")
