"""What a clumsy or hostile user does to the command line: no traceback, nothing overwritten, no escape sequence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_cache.semconv import names
from tests.cli.test_analyze import CAPTURE, COMMAND, SETTINGS, run
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
    assert "is one of the captures" in done.stderr
    assert file.read_bytes() == CAPTURE


def test_spans_never_replace_their_scenario(tmp_path: Path) -> None:
    """`lab run X --out X` is a slip of the pen."""
    scenario = tmp_path / "mine.yaml"
    text = "engine: {groups: [{kind: full_attention}]}\nrequests: [{id: a, prompt: [{segment: a, tokens: 9}]}]\n"
    scenario.write_text(text)
    done = run("lab", "run", scenario, "--out", scenario)
    assert done.returncode == 2
    assert "is one of the scenarios" in done.stderr
    assert scenario.read_text() == text


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
