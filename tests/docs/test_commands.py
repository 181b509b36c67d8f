"""Commands and options: what the documents show can be typed, and what can be typed is documented."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from analyzers.cli.main import VERBS, commands
from docs.examples import lines, parse
from docs.markdown import DOCS, ROOT, blocks, read, rows, sections, table

EXAMPLE = "$ otel-cache analyze --example\n"


def shown() -> Iterator[tuple[str, list[str]]]:
    """Yield every `otel-cache ...` command in the documents' shell blocks, with the document's name."""
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        for line in lines("\n".join(blocks(text, "sh"))):
            words = list(line.words)
            if words[0] == "kubectl" and "--" in words:
                words = words[words.index("--") + 1 :]
            if words[0] == "otel-cache":
                # Not the shell's own: where the output goes.
                yield path.name, words[1 : words.index(">") if ">" in words else None]


@pytest.mark.parametrize(("document", "words"), list(shown()), ids=lambda value: " ".join(value) if value else "")
def test_commands_in_the_documents_parse(document: str, words: list[str]) -> None:
    """Every command, with its options, is one that exists."""
    parse(words)


def test_every_command_is_in_the_readme() -> None:
    """Each verb has its line in the README's table, and each line a verb."""
    cells = [row[0] for row in rows(sections(read("README.md"))["Commands"])]
    assert [re.match(r"`otel-cache ([a-z]+)", cell)[1] for cell in cells] == [  # type: ignore[index]
        *("analyze", "convert", "explain", "fetch", "run", "sidecar", "doctor", "probe", "worksheet"),
        *("lab", "lab", "diff", "check"),
    ]
    assert {re.match(r"`otel-cache ([a-z]+)", cell)[1] for cell in cells} == set(VERBS)  # type: ignore[index]


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, by its full name."""
    context = click.Context(commands)
    for verb in VERBS:
        command = commands.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", child) for name, child in command.commands.items())
        else:
            yield verb, command


def options_of(command: click.Command) -> set[str]:
    """Return the options of a command, long and short."""
    return {option for param in command.params if isinstance(param, click.Option) for option in param.opts}


@pytest.mark.parametrize(("name", "command"), list(leaves()), ids=lambda value: value if isinstance(value, str) else "")
def test_options_are_documented(name: str, command: click.Command) -> None:
    """docs/configuration.md has every option of a command, and none that is gone."""
    options = {option for option in options_of(command) if option.startswith("--")}
    section = sections(read("docs/configuration.md"))[f"otel-cache {name}"]
    assert set(table(section)) == options


def test_options_of_analyze_are_in_its_page() -> None:
    """docs/analyze.md has the same options."""
    analyze = dict(leaves())["analyze"]
    options = {option for option in options_of(analyze) if option.startswith("--")}
    head = read("docs/analyze.md").split("## What it reads")[0]
    assert {match for row in rows(head) for match in re.findall(r"--[a-z-]+", row[0])} == options


def test_the_readme_shows_what_the_example_prints() -> None:
    """The report in the README is what the command prints; `[...]` stands for lines that are left out."""
    (block,) = [block for block in blocks(read("README.md"), "text") if block.startswith(EXAMPLE)]
    script = Path(sys.executable).parent / "otel-cache"
    done = subprocess.run([script, "analyze", "--example"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = block.removeprefix(EXAMPLE).split("[...]\n")
    assert done.stdout.startswith(first)
    at = len(first)
    for part in others:
        at = done.stdout.find(part, at)
        assert at >= 0, f"the report does not hold, in this order:\n{part}"
        at += len(part)


def test_make_targets_exist() -> None:
    """Every `make TARGET` in the documents is a target."""
    makefile = read("Makefile")
    for path in DOCS:
        for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{path.name}: make {target}"
