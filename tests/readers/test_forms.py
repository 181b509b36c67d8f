"""The same capture in every form: the same frames, and the same report."""

import io
import json
import os
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from analyzers.cli.main import commands
from analyzers.readers import batches, convert, open_capture
from otel_cache.errors import CaptureError, UsageError
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


def test_what_is_converted_keeps_its_counts_notes_and_other_programs(tmp_path: Path) -> None:
    usage = otlp.span("chat", {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.cache_read_tokens": 5}, span_id=91)
    odd = otlp.step(50, 50, STEP_POOL_USAGE=None)
    odd["attributes"].append({"key": "mine", "value": {"boolValue": True}})
    wrong = otlp.lookup(51, 51, REQUEST_ID=5)
    content = b"".join(LINES) + b"junk\n" + otlp.line({}, [usage, {}], scope="other")
    whole = read(tmp_path, content + otlp.line(otlp.resource(), [odd, wrong]))
    spans, notes = convert([tmp_path / "0.jsonl"], str(tmp_path / "typed"))
    again = open_capture(tmp_path / "typed")
    assert_same(again, whole)
    assert (spans, len(notes), len(again.notes)) == (len(LINES) + 2, 1, 2)
    assert again.usages["prompt_tokens"].to_list() == [7]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0.jsonl", "typed"]


@pytest.mark.parametrize("content", [b'{"resourceSpans":[]}\n', b"junk\n", otlp.line({}, [{}, {}], scope="other")])
def test_what_has_no_span_of_ours_is_refused_in_the_same_words(tmp_path: Path, content: bytes) -> None:
    """To convert as to analyze; what was in the place of the file is there still."""
    (tmp_path / "spans").write_bytes(content)
    (tmp_path / "typed").write_bytes(b"before")
    with pytest.raises(CaptureError) as analyzed:
        open_capture(tmp_path / "spans")
    for name in ("typed", "new"):
        with pytest.raises(CaptureError, match="no usable span of otel_cache") as converted:
            convert([tmp_path / "spans"], str(tmp_path / name))
        assert str(converted.value) == str(analyzed.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spans", "typed"]
    assert (tmp_path / "typed").read_bytes() == b"before"


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "spans").write_bytes(b"".join(LINES))
    with pytest.raises(UsageError, match="one of the captures"):
        convert([tmp_path], str(tmp_path / "spans"))
    with pytest.raises(CaptureError, match="no such file"):
        convert([tmp_path / "none"], str(tmp_path / "typed"))
    with pytest.raises(UsageError, match="cannot be written"):
        convert([tmp_path / "spans"], str(tmp_path / "no" / "typed"))
    assert [each.name for each in tmp_path.iterdir()] == ["spans"]


def test_several_processes_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches make a small capture one for several processes."""
    whole = read(tmp_path, b"".join(LINES) + b"junk\n")
    monkeypatch.setattr(batches, "BATCH_BYTES", 1)
    apart = open_capture(tmp_path / "0.jsonl")
    assert_same(apart, whole)
    assert list(apart.notes) == list(whole.notes)


@pytest.mark.parametrize("name", ["spans.parquet", "sp[a]ns*"])
def test_parquet_of_megabytes_is_read_from_its_file(name: str, tmp_path: Path) -> None:
    """More than any buffer holds; its name is no pattern."""
    content = b"".join(
        otlp.line(otlp.resource(), [otlp.lookup(at, at, REQUEST_ID=os.urandom(6000).hex())]) for at in range(1, 400)
    )
    whole = read(tmp_path, content)
    convert([tmp_path / "0.jsonl"], str(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 2 << 20
    assert_same(open_capture(tmp_path / name), whole)
