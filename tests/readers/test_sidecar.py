"""What the sidecar writes is what the readers read, in both of its forms, with nothing skipped."""

from pathlib import Path

import pytest

from analyzers.readers import open_capture
from otel_cache.records import Batch, Executed, Record, Replica
from otel_cache.semconv import names
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.otlp_json import JsonLinesWriter
from otel_cache.sidecar.parquet import ParquetWriter
from tests.readers.test_capture import assert_same
from tests.sidecar import support


@pytest.fixture
def captures(tmp_path: Path) -> list[Path]:
    """Return the same spans as JSON lines and as Parquet; ten records are missing before the last request."""
    paths = [tmp_path / "spans.jsonl", tmp_path / "spans.parquet"]
    builder = ProcessBuilder(support.hello())
    batches = [support.whole_request(0, "a"), support.whole_request(20, "b")]
    spans = [builder.add(Batch(0, batch)) for batch in batches] + [builder.close()]
    for writer in (JsonLinesWriter(str(paths[0])), ParquetWriter(str(paths[1]))):
        for group in spans:
            writer.write(group)
        writer.close()
    return paths


def test_every_span_is_read(captures: list[Path]) -> None:
    lines, parquet = (open_capture([path]) for path in captures)
    assert_same(lines, parquet)
    assert (lines.skipped_lines, lines.foreign_spans, list(lines.notes)) == (0, 0, [])
    assert lines.lookups.select("request_id", "hit_tokens", "first").rows() == [("a", 0, 1600), ("b", 0, 1600)]
    assert lines.groups["group"].to_list() == [0, 1, 2, 3] * 2
    assert set(lines.stores["request_id"]) == {"a", "b"}
    assert lines.evicts.filter("reset").height == 2
    evicted = lines.evicts.filter(~lines.evicts["reset"])
    assert evicted.select("positions", "fingerprints", "ages").rows() == [("3200,1600", b"1" * 8 + b"2" * 8, [7])] * 2
    assert lines.steps["index"].to_list() == [0, 1, 0, 1]
    missing = [frame["missing"].sum() for frame in (lines.lookups, lines.stores, lines.evicts)]
    assert sum(missing) == 10


@pytest.mark.parametrize("resource", [{}, {names.REPLICA_ID: "host:8000"}])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_workers_change_nothing(resource: dict[str, str], suffix: str, tmp_path: Path, captures: list[Path]) -> None:
    """Neither a worker of a process of its own nor one in the scheduler's, with records missing, makes a life."""
    rank = {**resource, names.WORKER_RANK: 1}
    worker: list[Record] = [Replica(0, 0, 1, rank), *(Executed(4 + at, 0, at, b"c" * 24, 5, 9) for at in range(3))]
    apart, within = ProcessBuilder(support.hello("fe")), ProcessBuilder(support.hello("fd"))
    spans = [*apart.add(Batch(9, worker)), *apart.close()]
    spans += [*within.add(Batch(0, [support.replica(0), Replica(1, 1, 1, rank), Executed(2, 1, 0, b"", 5, 9)]))]
    assert {span.name for span in spans} == {names.EXECUTE}
    path = tmp_path / f"workers.{suffix}"
    writer = JsonLinesWriter(str(path)) if suffix == "jsonl" else ParquetWriter(str(path))
    writer.write(spans)
    writer.close()
    assert_same(open_capture([captures[0], path]), open_capture([captures[0]]))


def test_the_two_forms_together_count_each_span_once(captures: list[Path]) -> None:
    both = open_capture(captures)
    assert_same(both, open_capture(captures[:1]))
    assert "came more than once" in both.notes[0]
