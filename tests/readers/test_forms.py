"""The same capture in every form: the same frames, and the same report."""

import io
import json
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from analyzers.cli.main import commands
from analyzers.readers import open_capture
from tests.readers import otlp
from tests.readers.forms import FORMS, JAEGER, prefixed, protobuf, zstd
from tests.readers.test_capture import LINES, assert_same, read

EXAMPLE = (files("analyzers") / "examples" / "model_case.jsonl").read_bytes().splitlines(keepends=True)


def report(path: Path) -> dict[str, object]:
    """Return the JSON report on a capture, without its notes: a set of files is told from one file there."""
    result = CliRunner().invoke(commands, ["analyze", str(path), "--format", "json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    made["coverage"].pop("notes")
    return made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return report(FORMS["lines"](EXAMPLE)(tmp_path_factory.mktemp("lines")))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "lines"])
def test_every_form_gives_the_same_report(form: str, tmp_path: Path, expected: dict[str, object]) -> None:
    assert report(FORMS[form](EXAMPLE)(tmp_path)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_frames(form: str, tmp_path: Path) -> None:
    (tmp_path / "form").mkdir()
    assert_same(open_capture(FORMS[form](LINES)(tmp_path / "form")), read(tmp_path, b"".join(LINES)))


@pytest.mark.parametrize("form", JAEGER)
def test_jaegers_download_gives_the_same_lookups(form: str, tmp_path: Path) -> None:
    columns = ["request_id", "prompt_tokens", "hit_tokens", "sequence", "values", "ladder"]
    capture, whole = open_capture(JAEGER[form](EXAMPLE)(tmp_path)), read(tmp_path, b"".join(EXAMPLE))
    assert capture.lookups.select(columns).equals(whole.lookups.select(columns))
    assert (capture.spans, capture.skipped_lines) == (whole.spans, 0)


@pytest.mark.parametrize("form", ["lines", "protobuf", "protobuf in frames", "protobuf, zstd", "old Tempo"])
def test_every_form_comes_by_stdin(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = FORMS[form](LINES)(tmp_path).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    assert_same(open_capture("-"), read(tmp_path, b"".join(LINES)))


def test_rotated_files_come_with_their_newest_and_are_said(tmp_path: Path) -> None:
    path = FORMS["rotated"](LINES)(tmp_path)
    (tmp_path / "spans-of-others.jsonl").write_bytes(otlp.line({}, [{}], scope="other"))
    capture = open_capture(path)
    assert (capture.spans, capture.foreign_spans) == (len(LINES), 0)
    assert list(capture.notes) == [f"{path}: read with 3 rotated files beside it"]
    path.unlink()
    assert open_capture(path).spans == len(LINES) - len(LINES[3::4])


def test_forms_mix_in_a_folder_and_what_is_none_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    for number, (form, lines) in enumerate(
        [("protobuf", LINES[:3]), ("zstd", LINES[3:5]), ("old Tempo", LINES[5:7]), ("gzip", LINES[7:])]
    ):
        (folder / str(number)).mkdir(parents=True)
        FORMS[form](lines)(folder / str(number))
    (folder / "notes.txt").write_text("hello")
    (folder / "broken.parquet").write_bytes(b"PAR1 but no more")
    capture = open_capture(folder)
    assert capture.spans == len(LINES)
    assert any("1 file that is no capture passed over (notes.txt)" in note for note in capture.notes)
    assert any("broken.parquet: damaged Parquet" in note for note in capture.notes)
    assert capture.skipped_lines == 1


def test_damage_between_messages_costs_what_it_hits(tmp_path: Path) -> None:
    messages = [prefixed([protobuf(line)]) for line in LINES]
    for junk in (b"\xff" * 100, b"\x00\x00\x10\x00", b"\n" * 57, b"junk", bytes(1000)):
        content = b"".join(messages[:4]) + junk + b"".join(messages[4:])
        capture = read(tmp_path, content)
        # Junk that looks like a length takes what comes behind it along, up to where a message is found again.
        assert capture.spans >= len(LINES) - 1, junk
        assert capture.skipped_lines >= 1


def test_a_damaged_frame_costs_its_message(tmp_path: Path) -> None:
    frames = [bytearray(zstd.compress(line)) for line in LINES]
    frames[2][20:40] = b"\xff" * 20
    capture = read(tmp_path, prefixed(map(bytes, frames)))
    assert (capture.spans, capture.skipped_lines) == (len(LINES) - 1, 1)
    assert "message 3: its compressed form is damaged" in capture.notes[0]
