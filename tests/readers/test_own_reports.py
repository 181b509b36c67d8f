"""Reports of otel-cache beside captures: passed over in a folder, and told by name where they are given."""

import gzip
import json
from importlib.resources import files
from pathlib import Path

import pytest
from experiments.commands import command

from analyzers.readers import open_capture
from analyzers.readers.own_reports import report_of
from analyzers.reporters import sweep
from otel_cache.errors import CaptureError

EXAMPLE = files("analyzers") / "examples" / "model_case.jsonl"
POLICY = "first_repeat: {}\n"
WRITTEN = {
    "analyze": ["analyze", "--example", "--format", "json"],
    "check": ["check", "--policy", "policy.yaml", EXAMPLE, "--format", "json"],
    "diff": ["diff", EXAMPLE, EXAMPLE, "--format", "json"],
    "doctor": ["doctor", "--format", "json"],
    "lab sweep": [],
    "worksheet": ["worksheet", "--prompt-tokens", "100", "--format", "json"],
}
"""What writes each report. A probe asks a server: tests/probe/test_reports.py."""


def written(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the JSON report of a command."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("analyzers.doctor.examine.examine", lambda vllm: [])
    (folder / "policy.yaml").write_text(POLICY)
    return command(*WRITTEN[name]).stdout if WRITTEN[name] else sweep.render_json([])


@pytest.mark.parametrize("name", WRITTEN)
def test_every_report_is_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its JSON is set; in a folder and by a pattern it is passed over, named it is an error that says so."""
    report = written(name, tmp_path, monkeypatch)
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "spans.jsonl").write_bytes(EXAMPLE.read_bytes())
    for text in (report, json.dumps(json.loads(report)), json.dumps(json.loads(report), separators=(",", ":"))):
        assert report_of(text.encode()) == name
        (folder / "report.json").write_text(text)
        for given in (folder, f"{folder}/*"):
            capture = open_capture([given])
            assert (capture.spans, capture.skipped_lines) == (40, 0)
            assert [note.partition(": ")[2].partition(" (")[0] for note in capture.notes] == [
                "1 file that is no capture passed over"
            ]
    (folder / "report.json.gz").write_bytes(gzip.compress(report.encode()))
    for given in ("report.json", "report.json.gz"):
        with pytest.raises(CaptureError, match=f"{given}: a report of `otel-cache {name}`, not a capture; give"):
            open_capture([folder / given])


def test_the_table_of_lookups_is_no_capture(tmp_path: Path) -> None:
    """It can be written anew into the folder that it was made of."""
    (tmp_path / "spans.jsonl").write_bytes(EXAMPLE.read_bytes())
    for _ in range(2):
        done = command("analyze", tmp_path, "--output", tmp_path / "report.parquet")
        assert done.returncode == 0
    assert done.stderr == f"note: {tmp_path}: 1 file that is no capture passed over (report.parquet)\n"
    done = command("analyze", tmp_path / "report.parquet")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the lookups that `otel-cache analyze` reported, not a capture" in done.stderr


def test_captures_are_no_reports() -> None:
    for head in (EXAMPLE.read_bytes(), b'{"resourceSpans":[]}', b'{"data":[]}', b"", b"PAR1", b'{"schema_version":1}'):
        assert report_of(head[:256]) == ""
