"""Habits of the command line: examples that run, --quiet, progress, completion, suggestions, exit codes, Ctrl-C."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from docs.examples import EXAMPLE, help_lines, prepare, run
from docs.markdown import read, rows, sections
from experiments.commands import command as otel_cache

from analyzers.cli.main import VERBS, commands
from tests.cli.test_analyze import CAPTURE, COMMAND


def every() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and group, by its full name."""
    yield "otel-cache", commands
    for verb in VERBS:
        command = commands.get_command(click.Context(commands), verb)
        assert command is not None
        yield verb, command
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", child) for name, child in command.commands.items())


EVERY = dict(every())
SPELLINGS = ("--out", "--output")


def written_by(command: click.Command) -> list[str]:
    return [option for each in command.params for option in each.opts if option in SPELLINGS]


@pytest.mark.parametrize("name", EVERY)
def test_examples_of_the_help_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every help text has some, for its own command; each is run, or checked as far as tests/docs/examples.py says."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    found = help_lines(EVERY[name])
    assert found
    for line in found:
        assert name == "otel-cache" or " ".join(line.words[1:]).startswith(name)
        run(line)


def test_quiet_before_and_after_the_command(tmp_path: Path) -> None:
    """Notes go, errors stay."""
    torn = tmp_path / "spans.jsonl"
    torn.write_bytes(CAPTURE + b"junk\n")
    assert "note: " in otel_cache("analyze", torn).stderr
    loud = otel_cache("analyze", torn)
    for words in (["--quiet", "analyze", torn], ["analyze", torn, "-q"], ["analyze", "--quiet", torn]):
        done = otel_cache(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, loud.stdout, "")
    assert otel_cache("-q", "convert", torn, "--output", tmp_path / "out.parquet").stderr == ""
    assert otel_cache("-q", "analyze", tmp_path / "none").stderr.startswith("Error: ")


@pytest.mark.parametrize("name", EVERY)
def test_every_command_can_be_quiet(name: str) -> None:
    assert ["-q", "--quiet"] in [param.opts for param in EVERY[name].params]


@pytest.mark.parametrize("name", [name for name, each in EVERY.items() if isinstance(each, click.Group)])
@pytest.mark.parametrize("width", [40, 80])
def test_no_help_is_cut(name: str, width: int) -> None:
    """The line of a command in its group's help is a whole sentence, however narrow the terminal."""
    group = EVERY[name]
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name=name, terminal_width=width)
    told = " ".join(group.get_help(context).partition("Commands:")[2].split())
    assert "..." not in told
    for command, says in group.short_helps(context):  # type: ignore[attr-defined]
        assert f"{command} {says}" in told
        assert says.endswith((".", "?"))


def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """Run a command whose stderr is a terminal; return its exit code and what came there."""
    master, slave = pty.openpty()
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=slave) as process:
        os.close(slave)
        said = b""
        try:
            while part := os.read(master, 4096):
                said += part
        except OSError:  # the other end has closed
            pass
        code = process.wait(60)
    os.close(master)
    return code, said.decode()


def test_progress_is_for_terminals(tmp_path: Path) -> None:
    """How far reading is, cleared at the end; nothing with --quiet, nothing in a pipe."""
    code, said = on_a_terminal("analyze", EXAMPLE, EXAMPLE.parent)
    assert code == 0
    assert "\rreading: 40 spans of otel_cache" in said
    assert "explaining 4 lookups" in said
    assert said.split("note:")[0].endswith("\r")
    code, said = on_a_terminal("convert", EXAMPLE, "--output", tmp_path / "out.parquet")
    assert (code, "\rreading: 40 spans" in said) == (0, True)
    assert on_a_terminal("analyze", EXAMPLE, "--quiet") == (0, "")
    assert otel_cache("analyze", EXAMPLE).stderr == ""


def completed(*words: str) -> list[str]:
    """Return what bash would offer for the last word: kind and value."""
    environ = {
        **os.environ, "_OTEL_CACHE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["otel-cache", *words]),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run(COMMAND, env=environ, capture_output=True, text=True, timeout=60)
    return done.stdout.split()


def test_completion() -> None:
    """Commands, options, files, values, and the names of rules, the last of a list."""
    assert completed("an") == ["plain,analyze"]
    assert completed("lab", "s") == ["plain,sweep"]
    assert completed("analyze", "--for") == ["plain,--format"]
    assert completed("analyze", "--format", "h") == ["plain,html"]
    assert completed("explain", "r", "--ex") == ["plain,--example"]
    assert completed("analyze", "--fail-on", "shift") == ["plain,shifted-boundary"]
    assert completed("analyze", "--fail-on", "evicted,sampl") == ["plain,evicted,sampled"]
    assert completed("lab", "sweep", "x", "--routing", "random,sticky_p") == ["plain,random,sticky_prefix"]
    assert completed("lab", "sweep", "x", "--retention-interval", "0,de") == ["plain,0,dense", "plain,0,default"]
    assert completed("lab", "sweep", "x", "--vllm", "inst") == ["plain,installed"]
    assert completed("worksheet", "--speculative", "ea") == ["plain,eagle", "plain,eagle3"]
    assert completed("worksheet", "--group", "ma") == ["plain,mamba"]
    assert completed("worksheet", "--retention-interval", "de") == ["plain,dense", "plain,default"]
    assert completed("worksheet", "--vllm-version", "0.2")[0].startswith("plain,0.2")
    for words in (["run"], ["sweep"]):
        assert completed("lab", *words, "model") == ["plain,model_case"]
        assert completed("lab", *words, "x", "--engine", "sa") == ["plain,same"]
        assert completed("lab", *words, "x.y") == ["file,x.y"]
    for words in (["analyze", "cap"], ["explain", "r", "cap"], ["convert", "x", "--output", "cap"], ["diff", "cap"]):
        assert completed(*words) == ["file,cap"], words
    source = {**os.environ, "_OTEL_CACHE_COMPLETE": "bash_source"}
    script = subprocess.run(COMMAND, env=source, capture_output=True, text=True, timeout=60).stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "_OTEL_CACHE_COMPLETE=bash_complete" in script


def test_paths_beside_words_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash shows its own only where no word is offered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yaml").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / ".hidden").touch()
    assert completed("lab", "run", "mod") == ["plain,model_case", "plain,model.yaml", "plain,models/"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["analize", "x"], "'analyze'"),
        (["lab", "swep", "x"], "'sweep'"),
        (["analyze", "x", "--fromat", "json"], "--format"),
        (["analyze", "--example", "--fail-on", "shifted_boundary"], "'shifted-boundary'"),
    ],
)
def test_what_was_meant(words: list[str], meant: str) -> None:
    done = otel_cache(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "id you mean" in done.stderr
    assert meant in done.stderr


def test_exit_codes_are_documented() -> None:
    """docs/command-line.md has each code that a command here ends with."""
    told = {row[0] for row in rows(sections(read("docs/command-line.md"))["Exit codes"])}
    assert told == {"`0`", "`1`", "`2`", "`130`", "`141`", "others"}
    assert otel_cache("analyze", EXAMPLE).returncode == 0
    assert otel_cache("analyze", EXAMPLE, "--fail-on", "shifted-boundary").returncode == 1
    assert otel_cache("analyze", "none").returncode == otel_cache("analyze", "--none").returncode == 2
    assert otel_cache("run", "--out", "/dev/null", "--", "no-such-command").returncode == 127


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (["convert", "-", "--output"], signal.SIGINT, 130),
        (["convert", "-", "--output"], signal.SIGTERM, 143),
        (["analyze", "-", "--output"], signal.SIGINT, 130),
    ],
    ids=["convert", "convert, SIGTERM", "analyze"],
)
def test_ctrl_c_leaves_no_half_file(words: list[str], number: signal.Signals, code: int, tmp_path: Path) -> None:
    """What was there before is there still, and nothing else; the command ends with the signal's code, and quietly."""
    output = tmp_path / "out"
    output.write_text("before")
    with subprocess.Popen([*COMMAND, *words, str(output)], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stderr
        # More than a batch, so that convert has begun to write; it goes on reading what does not come.
        line = CAPTURE.splitlines(keepends=True)[0]
        for _ in range((20 << 20) // len(line)):
            process.stdin.write(line)
        process.stdin.flush()
        if words[0] == "convert":
            deadline = time.monotonic() + 60
            while len(list(tmp_path.iterdir())) == 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(list(tmp_path.iterdir())) > 1
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr.read().strip() == b""
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert output.read_text() == "before"


@pytest.mark.vllm
def test_ctrl_c_ends_the_lab_without_half_a_file(tmp_path: Path) -> None:
    """Its spans are in their place when all scenarios have run, and not before."""
    output = tmp_path / "spans.jsonl"
    output.write_text("before")
    with subprocess.Popen([*COMMAND, "lab", "run", "model_case", "--out", str(output)]) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.rglob("*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["spans.jsonl"]
    assert output.read_text() == "before"


@pytest.mark.parametrize("name", [name for name, each in EVERY.items() if written_by(each)])
def test_both_spellings_of_the_output(name: str) -> None:
    """A command that writes a file takes its name by either option, and none has both."""
    (option,) = written_by(EVERY[name])
    root = click.Context(commands, **commands.context_settings)
    for spelling in SPELLINGS:
        parser = EVERY[name].make_parser(click.Context(EVERY[name], parent=root))
        assert parser.parse_args([spelling, "there"])[0][option.removeprefix("--")] == "there"


def test_the_other_spelling_writes(tmp_path: Path) -> None:
    """From end to end; and what `run` is given behind `--` is its command's."""
    spans = tmp_path / "spans.jsonl"
    spans.write_bytes(CAPTURE)
    assert otel_cache("analyze", spans, "--out", tmp_path / "report.txt").returncode == 0
    assert (tmp_path / "report.txt").read_text() == otel_cache("analyze", spans).stdout
    run_it = [*COMMAND, "run", "--output", tmp_path / "run.jsonl", "--", "echo", "--out", "x"]
    done = subprocess.run(run_it, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "--out x\n")
    assert (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize("missing", ["click", "polars", "msgspec", "numpy"])
@pytest.mark.parametrize("verb", ["analyze", "diff", "explain"])
def test_what_is_not_installed_is_named(missing: str, verb: str) -> None:
    arguments = {"analyze": ["--example"], "diff": [CAPTURE, CAPTURE], "explain": ["repeat-0", "--example"]}[verb]
    script = f"import sys; sys.modules[{missing!r}] = None; from analyzers.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, verb, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {missing} is not installed here; `pip install otel-cache` brings ")
