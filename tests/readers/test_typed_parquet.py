"""Typed Parquet as other hands leave it: of an earlier build, in another order, with metadata that is gone or wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzers.readers import convert, open_capture, typed_parquet, typed_writer
from analyzers.readers.tables import TABLES
from otel_cache.errors import CaptureError
from tests.readers import otlp
from tests.readers.test_capture import assert_same
from tests.readers.test_tables import CAPTURE

USAGE = otlp.span("chat", {"gen_ai.usage.input_tokens": 7}, span_id=91, parent=17)
WHOLE = CAPTURE + otlp.line({}, [USAGE], scope="other")
Notes = dict[str, Any]


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """Return what is made of `WHOLE`, which stands beside it as `lines`."""
    (tmp_path / "lines").write_bytes(WHOLE)
    convert([tmp_path / "lines"], str(tmp_path / "typed"))
    return tmp_path / "typed"


def assert_read_as(path: Path, spans: pl.DataFrame, metadata: dict[str, str]) -> None:
    """Assert that the file `path` with these `spans` is what the lines beside it are."""
    spans.write_parquet(path, metadata=metadata, row_group_size=7)
    assert_same(open_capture(path), open_capture(path.with_name("lines")))


def notes_of(path: Path) -> dict[str, str]:
    return {typed_parquet.METADATA: pl.read_parquet_metadata(path)[typed_parquet.METADATA]}


def as_text(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans as earlier builds wrote them: identifiers, names and resources as text."""
    rows = spans.select("trace_high", "trace_low", "span", "parent").rows()
    ids = pl.DataFrame(
        [
            (f"{high:016x}{low:016x}", f"{span:016x}", f"{parent:016x}" if parent else "")
            for high, low, span, parent in rows
        ],
        schema=["trace_id", "span_id", "parent_span_id"],
        orient="row",
    )
    rest = spans.drop("trace_high", "trace_low", "span", "parent")
    return pl.concat([ids, rest.with_columns(pl.col(pl.Categorical).cast(pl.String))], how="horizontal")


def test_a_file_of_an_earlier_build_is_read(typed: Path) -> None:
    notes = json.loads(notes_of(typed)[typed_parquet.METADATA])
    ids = ["trace_id", "span_id", "parent_span_id"]
    notes["columns"] = {name: [*ids, *columns[4:]] for name, columns in notes["columns"].items()}
    assert_read_as(typed, as_text(pl.read_parquet(typed)), {typed_parquet.METADATA: json.dumps(notes)})


def test_a_wrong_identifier_of_an_earlier_build_costs_its_span(typed: Path) -> None:
    spans = as_text(pl.read_parquet(typed))
    wrong = pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("ab" * 8)).otherwise("trace_id")
    metadata = notes_of(typed)
    spans.with_columns(wrong.alias("trace_id")).write_parquet(typed, metadata=metadata)
    assert open_capture(typed).spans == open_capture(typed.with_name("lines")).spans - 1


def test_rows_may_stand_in_any_order(typed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = notes_of(typed)
    for piece in (5, typed_parquet.PIECE_ROWS):
        monkeypatch.setattr(typed_parquet, "PIECE_ROWS", piece)
        assert_read_as(typed, pl.read_parquet(typed).sample(fraction=1, shuffle=True), metadata)


def renamed(notes: Notes) -> None:
    notes["columns"] = {name: [each[:-1] for each in columns] for name, columns in notes["columns"].items()}


def swapped(notes: Notes) -> None:
    notes["columns"] = {name[::-1]: columns for name, columns in notes["columns"].items()}


def more_than_there_are(notes: Notes) -> None:
    notes["columns"] = {name: [*columns, "of mine"] for name, columns in notes["columns"].items()}


@pytest.mark.parametrize("damage", [renamed, swapped, more_than_there_are])
def test_columns_that_are_not_there_are_not_believed(typed: Path, damage: Callable[[Notes], None]) -> None:
    notes = json.loads(notes_of(typed)[typed_parquet.METADATA])
    damage(notes)
    assert_read_as(typed, pl.read_parquet(typed), {typed_parquet.METADATA: json.dumps(notes)})


@pytest.mark.parametrize(
    "written", ["", "{", "[]", '{"columns":[]}', '{"columns":{"a":5}}', '{"columns":{},"kinds":1}']
)
def test_metadata_that_says_nothing(typed: Path, written: str) -> None:
    """The spans are those of the lines; how many other programs' there were is said nowhere else."""
    spans = pl.read_parquet(typed)
    spans.write_parquet(typed, metadata={typed_parquet.METADATA: written})
    capture, whole = open_capture(typed), open_capture(typed.with_name("lines"))
    assert_same(capture, type(capture)(**{**vars(whole), "foreign_spans": 0, "skipped_lines": capture.skipped_lines}))


def test_a_null_wherever_one_can_be(typed: Path) -> None:
    """0 is what a time or half an identifier is then; without all of one, a resource, name or scope it is no span."""
    spans, metadata = pl.read_parquet(typed), notes_of(typed)
    whole = open_capture(typed)
    for column in ("trace_high", "span", "parent", "start", "end", "resource", "name", "scope"):
        at = pl.int_range(pl.len()) == 1
        spans.with_columns(pl.when(~at).then(column).alias(column)).write_parquet(typed, metadata=metadata)
        lost = column not in ("trace_high", "parent", "start", "end")
        assert open_capture(typed).spans == whole.spans - lost, column


@pytest.mark.parametrize("odd", ["x", "", "5", "null", '"ab"', "[]", '[["a",1]]', '{"a":1', "[" * 100_000])
def test_odd_attributes_that_are_no_object_cost_their_span(typed: Path, odd: str) -> None:
    spans = pl.read_parquet(typed)
    spans.write_parquet(typed)
    whole = open_capture(typed)
    held = spans["odd"] if "odd" in spans.columns else pl.Series("odd", [None] * spans.height, pl.String)
    names_of = spans["name"].cast(pl.String)
    for name in TABLES:
        at = int((names_of == name).arg_true()[0])
        spans.with_columns(held.clone().scatter(at, odd)).write_parquet(typed)
        capture = open_capture(typed)
        assert (capture.spans, capture.skipped_lines) == (whole.spans - 1, whole.skipped_lines + 1)
        assert any("column 'odd' is not a JSON object" in note for note in capture.notes)


def test_a_column_of_another_type_is_told(typed: Path) -> None:
    spans = pl.read_parquet(typed)
    for column, dtype in (("span", pl.String), ("start", pl.Float64), ("resource", pl.Int64)):
        changed = spans.with_columns(pl.lit(None, dtype=dtype).alias(column))
        changed.write_parquet(typed)
        with pytest.raises(CaptureError, match=f"column '{column}' holds {dtype()}"):
            open_capture(typed)


def test_row_groups_are_as_large_as_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(WHOLE)
    monkeypatch.setattr(typed_writer, "ALONE", 1)
    monkeypatch.setattr(typed_writer, "GROUP_BYTES", 1000)
    convert([tmp_path / "lines"], str(tmp_path / "typed"))
    rows: dict[str, list[int]] = {}
    for (name, *others), count in json.loads(notes_of(tmp_path / "typed")[typed_parquet.METADATA])["groups"]:
        assert not others
        rows.setdefault(name, []).append(count)
    assert max(map(len, rows.values())) > 1
    for counts in rows.values():
        assert set(counts[:-1]) <= {max(counts)}
    assert_same(open_capture(tmp_path / "typed"), open_capture(tmp_path / "lines"))
