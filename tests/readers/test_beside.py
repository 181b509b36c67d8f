"""What is kept beside a file: the same capture, for as long as the file is the same."""

import gzip
import os
from pathlib import Path

import polars as pl
import pytest
from analysis.test_evidence import EXAMPLE

from analyzers.cli import main
from analyzers.readers import beside, capture, open_capture
from tests.readers import otlp
from tests.readers.forms import FORMS, JAEGER
from tests.readers.test_capture import LINES, assert_same

DAMAGED = b'{"resourceSpans":[{"x\n'


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to read a file itself fail."""

    def read(_: object) -> None:
        raise AssertionError("the file itself was read")

    monkeypatch.setattr(beside, "read_batches", read)


@pytest.mark.parametrize("form", [*FORMS, *JAEGER])
def test_the_second_reading_is_of_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    path = (FORMS | JAEGER)[form](LINES)(tmp_path)
    whole = open_capture([path])
    assert_same(open_capture([path], cache=True), whole)
    if not form.endswith("Parquet"):
        forbid(monkeypatch)
    again = open_capture([path], cache=True)
    assert_same(again, whole)
    assert again.notes == whole.notes


def test_what_was_passed_over_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spans.jsonl"
    bad = otlp.line(otlp.resource(), [otlp.lookup(99, 99, LOOKUP_PROMPT_TOKENS=-1)])
    path.write_bytes(b"".join([*LINES, DAMAGED, bad, otlp.line(otlp.resource(), [otlp.step(98, 9)], scope="other")]))
    whole, first = open_capture([path]), open_capture([path], cache=True)
    forbid(monkeypatch)
    for each in (first, open_capture([path], cache=True)):
        assert (each.skipped_lines, each.foreign_spans) == (whole.skipped_lines, whole.foreign_spans) == (2, 1)
        assert any("line 11" in note for note in each.notes)


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b"".join(LINES[:4]))
    assert open_capture([path], cache=True).spans == 4
    with path.open("ab") as stream:
        stream.writelines(LINES[4:])
    assert open_capture([path], cache=True).spans == len(LINES)
    about = path.stat()
    path.write_bytes(b"".join(LINES[::-1]))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert_same(open_capture([path], cache=True), open_capture([path]))


def test_another_version_reads_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b"".join(LINES))
    open_capture([path], cache=True)
    monkeypatch.setattr(beside, "VERSION", "0")
    forbid(monkeypatch)
    with pytest.raises(AssertionError, match="itself was read"):
        open_capture([path], cache=True)


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"junk" * 100])
def test_what_is_kept_and_damaged_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(gzip.compress(b"".join(LINES)))
    whole = open_capture([path], cache=True)
    kept = beside.beside(path)
    good = kept.read_bytes()
    kept.write_bytes(damage)
    assert_same(open_capture([path], cache=True), whole)
    kept.write_bytes(good[:200] + bytes(200) + good[400:])
    assert_same(open_capture([path], cache=True), whole)
    assert pl.read_parquet(kept).height == len(LINES)


def test_a_folder_does_not_count_what_is_kept(tmp_path: Path) -> None:
    for number, line in enumerate(LINES):
        (tmp_path / f"{number}.jsonl").write_bytes(line)
    whole = open_capture([tmp_path], cache=True)
    assert len(list(tmp_path.iterdir())) == 2 * len(LINES)
    assert whole.notes == []
    assert_same(open_capture([tmp_path], cache=True), whole)
    assert_same(open_capture([f"{tmp_path}/*"], cache=True), whole)


def test_where_nothing_can_be_kept_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the place of the file to be: as little can be written as in one that is read-only, root or not."""
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b"".join(LINES))
    beside.beside(path).mkdir()
    found = open_capture([path], cache=True)
    assert found.spans == len(LINES)
    assert any("nothing is kept beside it" in note for note in found.notes)
    assert not [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")]
    assert capture.open_capture([path]).notes == []


def test_the_command_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(EXAMPLE.read_bytes())
    reports = []
    for options in ([], ["--cache"], ["--cache"]):
        with pytest.raises(SystemExit) as ended:
            main(["analyze", str(path), "--format", "json", *options])
        assert not ended.value.code
        reports.append(capsys.readouterr().out)
        assert beside.beside(path).exists() == bool(options)
    assert reports[0] == reports[1] == reports[2]
