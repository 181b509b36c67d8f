"""Every code block of the README and of docs/ is run, or at least parsed, and what it names is there."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from analyzers.experiments.policy import load_policy
from analyzers.vllm_lab.scenario import parse_scenario
from analyzers.vllm_lab.workload import load_engine
from docs.examples import Line, kind_of, lines, missing_files, prepare, run
from docs.markdown import DOCS, ROOT, fences

PAGES = [*DOCS, ROOT / "collector" / "README.md"]
LANGUAGES = {"sh", "python", "yaml", "json", "text"}
PATCHES = "instrument()"
"""A Python block with this patches vLLM in its process: tests/instrumentation/test_opentelemetry.py runs it."""


def name(page: Path) -> str:
    """Return what a page is called in a test's name."""
    return str(page.relative_to(ROOT))


def of(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return [block for found, block in fences(page.read_text(encoding="utf-8")) if found == language]


WITH_CODE = [page for page in PAGES if of(page, "sh") or of(page, "python")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """In a language that a test here takes; and no command hides in an indented block."""
    text = page.read_text(encoding="utf-8")
    assert {language for language, _ in fences(text)} <= LANGUAGES
    assert len(fences(text)) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE))
    assert not re.findall(r"^ {4}(?:otel-cache|make|pip|docker|kubectl) .*", text, re.MULTILINE)


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_shell_and_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a page, then its Python, in one folder with the files that it speaks of."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    shell = "".join(of(page, "sh"))  # one after the other: a block may go on where the one before it went
    assert subprocess.run(["bash", "-n"], input=shell, text=True, capture_output=True).stderr == ""
    assert missing_files(shell) == []
    for line in lines(shell):
        run(line)
    python = of(page, "python")
    for block in (block for block in python if PATCHES in block):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                assert all(hasattr(import_module(str(node.module)), alias.name) for alias in node.names)
    script = "\n".join(block for block in python if PATCHES not in block)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == bool(script)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_yaml_and_json(page: Path, tmp_path: Path) -> None:
    """What reads such a file reads the block."""
    for block in of(page, "json"):
        json.loads(block)
    for block in of(page, "yaml"):
        file = tmp_path / "block.yaml"
        file.write_text(block)
        kind = kind_of(block)
        if kind == "scenario":
            assert parse_scenario(yaml.safe_load(block)).requests
        elif kind == "engine":
            assert load_engine(file).engine
        else:
            assert kind == "policy", f"{kind}: the real collector reads such a block in tests/e2e; take it from a file"
            assert load_policy(file)


LAB = {
    (page.stem, line.words[2]): line
    for page in PAGES
    for line in reversed([line for block in of(page, "sh") for line in lines(block)])
    if line.lab
}
"""The first run and the first sweep of each page; tests/lab and tests/experiments run all kinds of them."""


@pytest.mark.vllm
@pytest.mark.parametrize("line", LAB.values(), ids=lambda line: " ".join(line.words[2:]))
def test_the_lab(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs vLLM's own scheduler."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    run(line, vllm=True)
