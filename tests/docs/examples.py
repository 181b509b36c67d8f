"""Examples of commands, run: in a folder that holds the files that the documents and the help texts speak of."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml
from experiments.commands import command

from analyzers.cli.lab import _values
from analyzers.cli.main import commands
from analyzers.experiments.inputs import load_work
from analyzers.experiments.sweep import Axes, settings_of
from docs.markdown import ROOT, blocks, read

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))
ELSEWHERE = {
    "doctor": "examines the vLLM, the sidecar and the collector of this machine: tests/doctor",
    "fetch": "asks a tracing back end: tests/fetch, tests/e2e",
    "probe": "asks a model's server: tests/probe, tests/engine",
    "run": "starts a model's server: tests/engine, tests/sidecar",
    "sidecar": "runs until it is stopped: tests/sidecar",
}
"""Commands whose examples are parsed here, and which tests run them."""
STORED = "s3://"
"""Examples with it are parsed here: tests/e2e/test_object_storage.py runs them, with object storage."""
PARSED = {
    "cd": "the paths behind it are looked for there",
    "cp": "its files are looked for",
    "docker": "needs its daemon: its files are looked for, tests/deploy",
    "_OTEL_CACHE_COMPLETE=fish_source": "completion: tests/cli/test_habits.py",
    "eval": "completion: tests/cli/test_habits.py",
    "echo": "nothing to find",
    "export": "its variables are looked for: tests/docs/test_configuration.py",
    "kubectl": "needs a cluster: its files are looked for, tests/deploy",
    "openssl": "makes a certificate: tests/deploy/test_certificate.py",
    "sed": "writes a file: tests/deploy/test_compose.py and test_rules.py",
    "make": "its targets are looked for: tests/docs/test_commands.py",
    "otelcol": "its configuration is looked for: tests/e2e",
    "pip": "installs from an index",
    "python": "writes the tiny model: tests/engine",
    "uv": "installs from an index",
    "vllm": "starts a model's server: tests/engine",
}
"""Programs of others, which are not run."""


class Line(NamedTuple):
    """A simple command of a shell block, as words."""

    words: tuple[str, ...]

    @property
    def lab(self) -> bool:
        """Whether vLLM's own scheduler is run."""
        return self.words[:2] == ("otel-cache", "lab")


def lines(block: str) -> Iterator[Line]:
    """Yield the commands of a shell block."""
    for line in block.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|(?= )", line.partition("  #")[0]):
            if words := shlex.split(part, comments=True):
                yield Line(tuple(words))


def help_lines(command: click.Command) -> list[Line]:
    """Return the commands below `Example:` in a help text."""
    text = (command.help or "").partition("Example")[2].partition("\n")[2]
    return list(lines(text))


def prepare(folder: Path) -> None:
    """Put the files into a folder."""
    for name in ("spans", "before", "after", "replayed"):
        shutil.copy(EXAMPLE, folder / f"{name}.jsonl")
    (folder / "captures").mkdir()
    (folder / ".lanes").symlink_to(ROOT / ".lanes")
    run(Line(("otel-cache", "convert", "spans.jsonl", "--output", "captures/day.parquet")))
    run(Line(("otel-cache", "analyze", "spans.jsonl", "--format", "json", "--output", "before.json")))
    (folder / "policy.yaml").write_text(next(iter(blocks(read("docs/experiments.md"), "yaml"))))
    scenario, engine = blocks(read("docs/scenarios.md"), "yaml")
    (folder / "mine.yaml").write_text(scenario)
    (folder / "engine.yaml").write_text(engine)
    trace = [{"timestamp": 0, "input_length": 1500, "output_length": 2, "hash_ids": [1, 2, each]} for each in (3, 3, 4)]
    (folder / "trace.jsonl").write_text("".join(json.dumps(each) + "\n" for each in trace))
    same = {"outputs": {"equal": True, "compared": 3, "by": "tokens"}}
    servers = [
        {"role": "probed", **same, "outputs_against_probed": None},
        {"role": "control", **same, "outputs_against_probed": same["outputs"]},
    ]
    (folder / "probe.json").write_text(json.dumps({"servers": servers}))


def run(line: Line, vllm: bool = False) -> None:
    """Run a command of ours in the current folder, or parse it where others run it.

    The lab's are run where `vllm` says so, else as far as they come without vLLM.

    Raises:
        AssertionError: it fails, or names what is not there.

    """
    program, *words = line.words
    if program != "otel-cache":
        assert program in PARSED, f"{program}: not run by any test"
        return
    if words[0] in ELSEWHERE or any(word.startswith(STORED) for word in words):
        parse(words)
        return
    if words[0] == "lab" and not vllm:
        check_lab(parse(words).params)
        return
    done = command(*words)
    # A rule of a policy or of --fail-on may be broken by the example: that is what it shows.
    judged = words[0] == "check" or "--fail-on" in words
    assert done.returncode in ((0, 1) if judged else (0,)), f"{shlex.join(line.words)}\n{done.stderr}"
    assert done.stdout or done.stderr or {"--output", "--out"} & set(words), shlex.join(line.words)


def parse(words: list[str], group: click.Group = commands) -> click.Context:
    """Parse a command as the command line does, without running it."""
    name, *words = words
    found = group.get_command(click.Context(group), name)
    assert found is not None, f"there is no command {name}"
    if isinstance(found, click.Group) and not words[0].startswith("-"):
        return parse(words, found)
    return found.make_context(name, words) if "--help" not in words else click.Context(found)


def check_lab(given: Mapping[str, Any]) -> None:
    """Read what a command of the lab names, up to the settings of a sweep."""
    works = [load_work(path, given["engine"]) for path in given.get("scenarios", [given.get("work")])]
    names = [name for name in Axes.__dataclass_fields__ if name != "vllm" and given.get(name)]
    axes: dict[str, Any] = {name: _values(name, given[name]) for name in names}
    if "work" in given:
        assert settings_of(works[0].scenario, Axes(**axes), works[0].name)


def missing_files(shell: str) -> list[str]:
    """Return the files of the tree that commands of other programs name, and that neither are there nor were copied."""
    folder, gone, copied = ROOT, [], set()
    for line in lines(shell):
        program, *words = line.words
        words = words[: words.index(">") if ">" in words else None]
        if program == "cd":
            folder = ROOT / words[0]
        if program == "cp":
            copied.add(words.pop())
        if program in ("cd", "cp", "docker", "kubectl", "otelcol", "sed"):
            paths = [word for word in words if re.fullmatch(r"[\w.-]+(/[\w.-]+)*\.(yaml|example)|\w+(/[\w.-]+)+", word)]
            gone += [word for word in paths if not (folder / word).exists() and not (ROOT / word).exists()]
    return [word for word in gone if word not in copied]


def kind_of(block: str) -> str:
    """Return what a YAML block is, by its keys."""
    keys = set(yaml.safe_load(block))
    known = {"scenario": "requests", "collector": "receivers", "engine": "engine"}
    return next((kind for kind, key in known.items() if key in keys), "policy")
