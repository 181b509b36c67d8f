"""Damaged, foreign and missing input: a counted skip or one sentence, never a traceback and never a wrong span."""

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzers.model import Capture
from analyzers.readers import open_capture
from otel_cache.errors import CaptureError
from otel_cache.semconv import names
from tests.readers import otlp
from tests.readers.test_capture import LINES, assert_same, parquet, read

GOOD = otlp.line(otlp.resource(), [otlp.lookup(1, 1)])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"hello\n", "not JSON ("),
        (b"\x00\x00\x00\n", "not JSON ("),
        (bytes(range(128, 256)) + b"\n", "not JSON ("),
        (GOOD.replace(b"repeat-0", b"repeat\xff0"), "not OTLP (Invalid UTF-8"),
        (b"[" * 100_000 + b"\n", "not OTLP ("),
        (b'{"x":' * 100_000 + b"\n", "nested too deeply"),
        (b'{"resourceSpans":' * 100_000 + b"\n", "not OTLP ("),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "nested too deeply"),
        (b'{"some": "json"}\n', "not OTLP (JSON, but without resourceSpans)"),
        (b"[1, 2]\n", "not OTLP ("),
        (b"12\n", "not OTLP ("),
        (b'{"resourceSpans": {}}\n', "not OTLP ("),
        (b'{"resourceSpans": [{"scopeSpans": 7}]}\n', "not OTLP ("),
    ],
)  # fmt: skip
def test_a_bad_line_is_counted_and_costs_no_other(tmp_path: Path, bad: bytes, why: str) -> None:
    capture = read(tmp_path, GOOD + bad + otlp.line(otlp.resource(), [otlp.lookup(2, 2)]))
    assert capture.lookups["sequence"].to_list() == [1, 2]
    assert capture.skipped_lines == 1
    (note,) = capture.notes
    assert note.startswith(f"{tmp_path}/0.jsonl line 2: ")
    assert why in note
    assert len(note) < 300 + len(str(tmp_path))


def changed(key: str, value: Any) -> dict[str, Any]:
    """Return a lookup with another OTLP value for one attribute; None removes it."""
    span = otlp.lookup(7, 7)
    span["attributes"] = [each for each in span["attributes"] if each["key"] != key]
    if value is not None:
        span["attributes"].append({"key": key, "value": value})
    return span


def duration(written: str) -> dict[str, Any]:
    """Return a step whose duration is a double in quotes."""
    span = otlp.step(7, 7, STEP_EXECUTE_DURATION=None)
    span["attributes"].append({"key": names.STEP_EXECUTE_DURATION, "value": {"doubleValue": written}})
    return span


DEEP: dict[str, Any] = {"intValue": 1}
for _ in range(200):
    DEEP = {"arrayValue": {"values": [DEEP]}}

BAD_SPANS = {
    "a number that is text": (changed(names.LOOKUP_HIT_TOKENS, {"stringValue": "many"}), "not an integer"),
    "a number that is a boolean": (changed(names.LOOKUP_HIT_TOKENS, {"boolValue": True}), "not an integer"),
    "a number that is none": (changed(names.LOOKUP_HIT_TOKENS, {"intValue": "1x"}), "not a number"),
    "a number beyond 64 bits": (changed(names.LOOKUP_HIT_TOKENS, {"intValue": str(2**63)}), "out of range"),
    "a number of 10,000 digits": (changed(names.LOOKUP_HIT_TOKENS, {"intValue": "9" * 10_000}), "not a number"),
    "a number below 0": (changed(names.LOOKUP_PROMPT_TOKENS, {"intValue": -1}), "out of range"),
    "a number of another structure": (changed(names.LOOKUP_HIT_TOKENS, {"intValue": []}), "not OTLP"),
    "no number": (changed(names.LOOKUP_HIT_TOKENS, None), "hit_tokens is missing"),
    "no sequence": (changed(names.RECORD_SEQUENCE, None), "sequence is missing"),
    "more hit than asked": (changed(names.LOOKUP_HIT_TOKENS, {"intValue": 11911}), "more than"),
    "an id that is a number": (changed(names.REQUEST_ID, {"intValue": 1}), "not a string"),
    "a flag that is text": (changed(names.LOOKUP_ADMITTED, {"stringValue": "yes"}), "not a boolean"),
    "bad base64": (changed(names.FINGERPRINT_PROMPT, {"stringValue": "?"}), "not base64"),
    "base64 that is not ASCII": (changed(names.FINGERPRINT_PROMPT, {"stringValue": "é"}), "not base64"),
    "half a fingerprint": (changed(names.FINGERPRINT_HIT, {"stringValue": "AAAA"}), "no whole number"),
    "fingerprints of another type": (changed(names.FINGERPRINT_VALUES, {"intValue": 4}), "not a list of strings"),
    "nesting": (changed(names.FINGERPRINT_VALUES, DEEP), "not"),
    "no ids": ({"name": names.LOOKUP}, "trace id"),
    "zero ids": ({**otlp.lookup(0, 7)}, "span id"),
    "ids that are not hex": ({**otlp.lookup(7, 7), "traceId": "z" * 32}, "trace id"),
    "a parent that is not hex": ({**otlp.lookup(7, 7), "parentSpanId": "12"}, "parent span id"),
    "a time that is none": ({**otlp.lookup(7, 7), "startTimeUnixNano": "soon"}, "start time"),
    "a time beyond 64 bits": ({**otlp.lookup(7, 7), "endTimeUnixNano": 2**64}, "end time"),
    "positions": (otlp.store(7, 7, STORE_STORED=["1600-", "x"]), "not a position"),
    "positions backwards": (otlp.store(7, 7, STORE_STORED=["9-2/1", ""]), "backwards"),
    "positions without a step": (otlp.store(7, 7, STORE_STORED=["2-9/0", ""]), "not a position"),
    "positions beyond 64 bits": (otlp.store(7, 7, STORE_STORED=[str(2**63), ""]), "out of range"),
    "positions without end": (otlp.store(7, 7, STORE_STORED=[f"0-{2**62}/1", ""]), "more than"),
    "positions without limit": (otlp.store(7, 7, STORE_STORED=[f"0-{2**80}/1", ""]), "out of range"),
    "positions of another group": (otlp.store(7, 7, STORE_STORED=["1"]), "1 entries for 2 groups"),
    "a store without groups": (otlp.store(7, 7, GROUP_IDS=None), "ids is missing"),
    "a group twice": (otlp.store(7, 7, GROUP_IDS=[1, 1]), "twice"),
    "a group beyond 32 bits": (otlp.store(7, 7, GROUP_IDS=[1, 2**31]), "not an integer from 0"),
    "passes of different number": (otlp.group(7, 1, GROUP_PASS_HIT=[1, 2]), "passes differ"),
    "a block of nothing": (otlp.group(7, 1, GROUP_BLOCK_SIZE=0), "block_size is 0"),
    "an evict of nothing": (otlp.evict(7, 7, GROUP_IDS=[]), "missing is missing"),
    "more blocks than positions": (otlp.evict(7, 7, EVICT_BLOCKS=[3, 1]), "differ in number"),
    "fewer fingerprints than positions": (
        otlp.evict(7, 7, EVICT_FINGERPRINTS=[otlp.fingerprints(1), ""]), "differ in number"),
    "fewer keys than positions": (otlp.evict(7, 7, EVICT_KEYS=[otlp.fingerprints(1), ""]), "differ in number"),
    "a duration that is text": (otlp.step(7, 7, STEP_EXECUTE_DURATION="long"), "not a number"),
    "a duration without end": (duration("Infinity"), "no duration"),
    "a duration that is none": (duration("soon"), "not a number"),
}  # fmt: skip


@pytest.mark.parametrize(("span", "why"), BAD_SPANS.values(), ids=BAD_SPANS)
def test_a_bad_span_is_counted_and_costs_no_other(tmp_path: Path, span: dict[str, Any], why: str) -> None:
    content = otlp.line(otlp.resource(), [otlp.lookup(1, 1), span, otlp.lookup(2, 2)])
    capture = read(tmp_path, content)
    assert (capture.spans, capture.skipped_lines) == (2, 1)
    assert capture.lookups["sequence"].to_list() == [1, 2]
    (note,) = capture.notes
    assert "line 1" in note
    assert why in note
    assert len(note) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    "owner",
    [
        {},
        {"attributes": 5},
        {"attributes": otlp.attributes({names.REPLICA_ID: "r0"})},
        {"attributes": otlp.attributes({names.REPLICA_ID: "", "service.instance.id": "x"})},
        {"attributes": otlp.attributes({names.REPLICA_ID: 3, "service.instance.id": "x"})},
    ],
)
def test_a_resource_that_names_no_replica_skips_its_spans(tmp_path: Path, owner: dict[str, Any]) -> None:
    capture = read(tmp_path, GOOD + otlp.line(owner, [otlp.lookup(2, 2), otlp.step(3, 3)]))
    assert (capture.spans, capture.skipped_lines, len(capture.lives)) == (1, 2, 1)


def test_one_damaged_resource_changes_no_setting_of_its_life(tmp_path: Path) -> None:
    good, damaged = otlp.resource(blocks=400), otlp.resource(blocks=900, more="x")
    lines = [otlp.line(good, [otlp.lookup(1, 1), otlp.lookup(2, 2)]), otlp.line(damaged, [otlp.lookup(3, 3)])]
    for order in (lines, lines[::-1]):
        (life,) = read(tmp_path, b"".join(order)).lives
        assert (life.attributes["blocks"], life.attributes["more"]) == (400, "x")


def test_other_programs_and_signals_are_counted_and_ignored(tmp_path: Path) -> None:
    other = otlp.line({"attributes": []}, [otlp.lookup(5, 5), {"broken": 1}], scope="fastapi")
    unscoped = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]},{}]}\n'
    signals = b'{"resourceLogs":[]}\n{"resourceMetrics":[{}]}\n{}\n\n  \n'
    capture = read(tmp_path, other + unscoped + signals + GOOD)
    assert (capture.spans, capture.foreign_spans, capture.skipped_lines) == (1, 6, 0)
    assert list(capture.notes) == []


def test_unknown_spans_of_ours_count_and_unknown_attributes_do_not_matter(tmp_path: Path) -> None:
    span = otlp.lookup(1, 1)
    span["attributes"].append({"key": "new", "value": {"kvlistValue": {"values": [{"key": "a"}]}}})
    span["attributes"].append({"key": "empty", "value": {}})
    capture = read(tmp_path, otlp.line(otlp.resource(), [span, otlp.span("vllm.new.span", {}, span_id=2)]))
    assert (capture.spans, capture.skipped_lines, capture.lookups.height) == (2, 0, 1)


def test_notes_are_few(tmp_path: Path) -> None:
    capture = read(tmp_path, GOOD + b"x\n" * 1000)
    assert capture.skipped_lines == 1000
    assert len(capture.notes) == 6
    assert capture.notes[-1] == "and 995 more lines that are not JSON"


WHOLE = b"".join(LINES)


@settings(max_examples=150, deadline=None)
@given(cut=st.integers(len(LINES[0]), len(WHOLE)), junk=st.binary(max_size=8))
@example(cut=len(LINES[0]), junk=b"")
@example(cut=len(LINES[0]), junk=b"{}")
@example(cut=len(WHOLE) - 1, junk=b"")
def test_a_torn_file_keeps_every_span_before_the_tear(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    torn = WHOLE[:cut]
    whole_lines = torn.count(b"\n") + (WHOLE[cut : cut + 1] == b"\n" and not junk)
    expected = read(folder, b"".join(LINES[:whole_lines]))
    capture = read(folder, torn + junk.replace(b"\n", b""))
    assert_same(only_spans(capture), expected)
    assert capture.skipped_lines + capture.foreign_spans <= 1


def only_spans(capture: Capture) -> Capture:
    return Capture(**{**vars(capture), "skipped_lines": 0, "foreign_spans": 0})


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), junk=st.binary(min_size=1, max_size=20))
def test_damage_anywhere_is_an_error_or_a_skip(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    try:
        capture = read(tmp_path_factory.mktemp("junk"), WHOLE[:at] + junk + WHOLE[at + len(junk) :])
    except CaptureError as error:
        # The junk looks like the beginning of another form.
        assert at == 0 and "at its beginning" in str(error)
        return
    assert capture.spans + capture.skipped_lines + capture.foreign_spans > 0


def test_a_torn_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    packed = gzip.compress(WHOLE)
    capture = read(tmp_path, gzip.compress(GOOD) + packed[: len(packed) // 2])
    assert capture.spans >= 1
    assert "cut off" in capture.notes[-1]


def message_of(*paths: str | Path) -> str:
    with pytest.raises(CaptureError) as caught:
        open_capture(paths)
    return str(caught.value)


def test_what_cannot_be_read_at_all_is_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    assert message_of(missing).startswith(f"{missing}: no such file or folder")
    assert "no file matches" in message_of(f"{tmp_path}/*.jsonl")
    assert "no capture in this folder" in message_of(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    assert message_of(empty).startswith(f"{empty}: empty")
    packed = tmp_path / "spans.zst"
    packed.write_bytes(b"\x28\xb5\x2f\xfd....")
    assert "cut off or damaged at its beginning" in message_of(packed)
    link = tmp_path / "link"
    link.symlink_to(missing)
    assert message_of(link).startswith(f"{link}: cannot be read")


@pytest.mark.parametrize(
    ("name", "beside", "says"),
    [
        ("a.parquet", ["a.parquet.part.jsonl"], "the sidecar makes it when it ends; until then give {0}"),
        ("a.jsonl", ["a.jsonl.gz"], "beside it is {0}"),
        ("a", ["a.jsonl", "a.parquet"], "beside it are {0}, {1}"),
        ("a.jsonl", ["a.jsonl.txt", "ab.jsonl", "b.jsonl"], "give the file that the sidecar or a collector wrote"),
    ],
)
def test_what_lies_beside_a_name_that_is_none_is_named(tmp_path: Path, name: str, beside: list[str], says: str) -> None:
    contents = {"gz": gzip.compress(GOOD), "txt": b"notes", "parquet": b"PAR1"}
    paths = [tmp_path / each for each in beside]
    for path in paths:
        path.write_bytes(contents.get(path.suffix[1:], GOOD))
    assert message_of(tmp_path / name) == f"{tmp_path / name}: no such file or folder; {says.format(*paths)}"


def test_a_capture_without_our_spans_says_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(otlp.line({}, [{}, {}, {}], scope="fastapi") + b"junk\n")
    message = message_of(path)
    assert "3 of other programs, 1 lines or spans that could not be read" in message
    assert "OTEL_PYTHON_VLLM_CACHE_ENABLED" in message
    assert "line 2: not JSON" in message


@pytest.mark.parametrize("cut", [4, 100, 2000, -1, -9])
def test_damaged_parquet_is_one_sentence(tmp_path: Path, cut: int) -> None:
    path = parquet(tmp_path / "spans")
    path.write_bytes(path.read_bytes()[:cut])
    assert message_of(path).startswith(f"{path}: damaged Parquet")


def test_parquet_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    assert "it has no column 'trace_id'" in message_of(path)
    parquet(path, start=pl.Series(["soon"] * len(LINES)))
    assert "column 'start' holds String, not Int64" in message_of(path)
