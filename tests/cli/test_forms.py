"""The form of a report is what `--format` says, else what the name of the file asks for, else text."""

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from analyzers.cli.main import commands


def run(*words: str) -> Result:
    return CliRunner().invoke(commands, words)


def kind_of(path: Path) -> str:
    """Return of which form a report in a file is, by its content."""
    data = path.read_bytes()
    if data.startswith(b"PAR1"):
        assert pl.read_parquet(path).height > 0
        return "parquet"
    if data.startswith(b"<!DOCTYPE html>"):
        return "html"
    if data.startswith(b"{"):
        assert json.loads(data)["schema_version"]
        return "json"
    return "markdown" if data.startswith(b"#") else "text"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("report.json", "json"),
        ("report.md", "markdown"),
        ("report.markdown", "markdown"),
        ("report.HTML", "html"),
        ("report.htm", "html"),
        ("lookups.parquet", "parquet"),
        ("report.txt", "text"),
        ("report", "text"),
    ],
)
def test_the_name_of_the_file_asks_for_the_form(tmp_path: Path, name: str, form: str) -> None:
    done = run("analyze", "--example", "--quiet", "--output", str(tmp_path / name))
    assert (done.exit_code, done.output) == (0, "")
    assert kind_of(tmp_path / name) == form


def test_format_counts_for_more_than_the_name_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for words in (["--format", "json", "--output", str(path)], ["--output", str(path), "--format", "json"]):
        assert run("analyze", "--example", *words).exit_code == 0
        assert kind_of(path) == "json"


def test_a_name_for_a_form_that_a_command_does_not_write(tmp_path: Path) -> None:
    """It says so before it reads anything, and writes nothing."""
    path = tmp_path / "difference.html"
    done = run("diff", "before.jsonl", "after.jsonl", "--output", str(path))
    assert done.exit_code == 2
    assert f"--output {path}: diff writes no html; give --format (text, json, markdown)" in done.output
    assert not path.exists()
