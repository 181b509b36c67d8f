"""Rows that are made of all spans at once are those that are made span by span, and faults are left to the latter."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from analyzers.model import Capture
from analyzers.readers import frames, open_capture, schemas
from analyzers.readers.spans import FlatSpan
from analyzers.readers.tables import TABLES, Table
from otel_cache.semconv import names
from tests.readers import otlp
from tests.readers.test_capture import LINES, assert_same
from tests.readers.test_forms import EXAMPLE

ODD_ONES = [
    otlp.evict(31, 31, EVICT_KEYS=["", ""], EVICT_AGE=[1], EVICT_EVICTOR_GROUPS=["1,0", "3"], MISSING_RECORDS=4),
    otlp.evict(32, 32, EVICT_BLOCKS=None, EVICT_FINGERPRINTS=None, EVICT_POSITIONS=["1600-8000/1600", ""],
               EVICT_KEYS=None),
    otlp.evict(33, 33, EVICT_REASON="x", EVICT_KEYS=None, EVICT_EVICTOR_REQUEST_ID=None),
    otlp.store(34, 34, STORE_WANTED=None, FINGERPRINT_FIRST=1, MISSING_RECORDS=2),
    otlp.store(35, 35, STORE_STORED=[], STORE_CHUNK_START=None, FINGERPRINT_VALUES=[]),
    otlp.group(36, 12, GROUP_PASS_ASKED=[1, 2], GROUP_PASS_HIT=[1, 2], GROUP_PASS_DROPPED=[1, 2],
               GROUP_PASS_ALIGNMENT=[1, 2]),
    otlp.group(37, 12, GROUP_PASS_ASKED=None, GROUP_PASS_HIT=[], GROUP_PASS_DROPPED=None, GROUP_PASS_ALIGNMENT=[]),
    otlp.lookup(38, 38, FINGERPRINT_VALUES=[otlp.fingerprints(1), otlp.fingerprints(2, 3)], LOOKUP_ADMITTED=None,
                LOOKUP_MAX_HIT_TOKENS=None, LOOKUP_PROMPT_TOKENS=0, LOOKUP_ATTEMPTS=None, KEY_SALT="AAAA"),
    otlp.step(39, 39, STEP_POOL_USAGE=0.5, STEP_WAITING_REQUESTS=None, STEP_EXECUTE_DURATION=0.0),
    otlp.span(names.REQUEST, {names.REQUEST_ID: "a", names.REQUEST_FINISH_REASON: "", names.REQUEST_PREEMPTIONS: 1,
                              names.REQUEST_SESSION_DIGEST: "AAAA"}, span_id=40, start=9, end=8),
]  # fmt: skip
CAPTURE = b"".join([*LINES, otlp.line(otlp.resource(), ODD_ONES), *EXAMPLE])


def opened(path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Table], Table]) -> Capture:
    path.write_bytes(CAPTURE)
    with monkeypatch.context() as patched:
        for name, table in TABLES.items():
            patched.setitem(frames.TABLES, name, change(table))
        return open_capture(path)


def test_both_ways_make_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = opened(tmp_path / "spans", monkeypatch, lambda table: table._replace(clean=lambda _: pl.lit(False)))
    at_once = open_capture(tmp_path / "spans")
    assert one_by_one.skipped_lines == 0
    assert_same(at_once, one_by_one)


def test_spans_without_fault_are_not_looked_at_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watched(table: Table) -> Table:
        def exact(span: FlatSpan) -> list[tuple[object, ...]]:
            seen.append(span.span_id)
            return table.exact(span)

        return table._replace(exact=exact)

    opened(tmp_path / "spans", monkeypatch, watched)
    # Only blocks with keys of their own, and markers without groups.
    assert sorted(seen) == [f"{number:016x}" for number in (15, 16)]


def test_numbers_of_any_size_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait in the narrowest type that holds them; which one that is differs from part to part."""
    monkeypatch.setattr(frames, "PENDING_ROWS", 1)
    indices = [1, 1 << 7, 1 << 31, 1 << 40, (1 << 63) - 1]
    waiting = [None, 3, None, 1 << 16, 1 << 62]
    for number, (index, waits) in enumerate(zip(indices, waiting, strict=True)):
        step = otlp.step(50 + number, 50 + number, STEP_INDEX=index, STEP_WAITING_REQUESTS=waits)
        (tmp_path / f"{number}.jsonl").write_bytes(otlp.line(otlp.resource(), [step]))
    steps = open_capture(tmp_path).steps
    assert dict(steps.schema) == schemas.STEPS
    assert steps["index"].to_list() == indices
    assert steps["waiting_requests"].to_list() == [each or 0 for each in waiting]
