"""What a good capture becomes: frames of the contract's columns and types, whatever the form and the order."""

import gzip
import io
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from analyzers.model import Capture
from analyzers.readers import open_capture, schemas
from otel_cache.semconv import names
from tests.readers import otlp

ROUTER = "llm_d.kv_cache.prefix_match."
FRAMES = ("lookups", "groups", "stores", "evicts", "steps", "requests", "usages")
SPANS = [
    otlp.store(10, 1),
    otlp.step(11, 2),
    otlp.lookup(12, 3),
    otlp.group(13, parent=12),
    otlp.group(14, parent=12, GROUP_IDS=[3], GROUP_KIND=names.KIND_FULL_ATTENTION, GROUP_STORED_BELOW=9600),
    otlp.evict(15, 6),
    otlp.span(names.EVICT, {names.RECORD_SEQUENCE: 7, names.EVICT_RESET: True}, span_id=16),
    otlp.span(names.REQUEST, {names.REQUEST_ID: "repeat-0"}, span_id=17),
]
LINES = [otlp.line(otlp.resource(), [span]) for span in SPANS] + [
    otlp.line(otlp.resource("r1", f"r1-life{life}", model="m"), [otlp.lookup(20 + life, 1, start=500 + life)])
    for life in (1, 0)
]


def read(folder: Path, *files: bytes) -> Capture:
    paths = []
    for number, content in enumerate(files):
        paths.append(folder / f"{number}.jsonl")
        paths[-1].write_bytes(content)
    return open_capture(paths)


def assert_same(one: Capture, other: Capture) -> None:
    for name in FRAMES:
        assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.lives == other.lives
    assert (one.spans, one.foreign_spans, one.skipped_lines) == (other.spans, other.foreign_spans, other.skipped_lines)


def test_frames_have_the_contract_s_columns_and_values(tmp_path: Path) -> None:
    capture = read(tmp_path, b"".join(LINES))
    for name in FRAMES:
        assert dict(getattr(capture, name).schema) == getattr(schemas, name.upper())
    assert (capture.spans, capture.foreign_spans, capture.skipped_lines, list(capture.notes)) == (10, 0, 0, [])
    assert [(life.index, life.replica, life.instance) for life in capture.lives] == [
        (0, "r0", "r0-life0"), (1, "r1", "r1-life0"), (2, "r1", "r1-life1"),
    ]  # fmt: skip
    assert capture.lives[1].attributes["model"] == "m"

    lookup = capture.lookups.row(0, named=True)
    assert (lookup["life"], lookup["sequence"], lookup["number"], lookup["missing"]) == (0, 3, 3, 0)
    assert (lookup["request_id"], lookup["prompt_tokens"], lookup["max_hit_tokens"]) == ("repeat-0", 11910, 11909)
    assert (lookup["admitted"], lookup["admitted_tokens"], lookup["first"]) == (True, 0, 1600)
    assert lookup["values"] == b"".join(number.to_bytes(8) for number in range(1, 8))
    assert (lookup["hit_fingerprint"], lookup["ladder"], lookup["key"]) == (b"", b"", b"")

    groups = capture.groups.select("group", "kind", "stored_below", "asked_tokens", "parent_span_id", "sequence").rows()
    parent = f"{12:016x}"
    assert groups == [
        *[(group, "mamba", None, [9600], parent, 3) for group in (0, 1, 2)],
        (3, "full_attention", 9600, [9600], parent, 3),
    ]
    assert capture.stores.select("group", "stored", "masked", "wanted", "chunk_end").rows() == [
        (0, "", "9600", "11200", 9600),
        (3, "1600-9600/1600", "", "", 9600),
    ]
    evicts = capture.evicts.select("group", "positions", "keys", "ages", "reset").rows()
    assert evicts == [
        (0, "1600,3200", bytes(8) + (7).to_bytes(8), [500], False),
        (3, "1600", b"", [400], False),
        (-1, "", b"", [], True),
    ]
    assert capture.steps.select("index", "execute_duration").rows() == [(2, 0.25)]


def test_empty_frames_have_the_full_schema(tmp_path: Path) -> None:
    capture = read(tmp_path, otlp.line(otlp.resource(), [otlp.lookup(1, 1)]))
    for name in ("groups", "stores", "evicts", "steps"):
        assert dict(getattr(capture, name).schema) == getattr(schemas, name.upper())
        assert getattr(capture, name).is_empty()


def test_missing_records_that_come_last_take_their_place_after_the_evidence_before(tmp_path: Path) -> None:
    marker = {names.GROUP_IDS: [], names.EVIDENCE_NUMBER: 4, names.MISSING_RECORDS: 7}
    spans = [otlp.lookup(1, 2), otlp.store(2, 3), otlp.span(names.EVICT, marker, span_id=3), otlp.evict(4, 9)]
    evicts = read(tmp_path, otlp.line(otlp.resource(), spans)).evicts
    assert evicts.select("sequence", "group", "missing", "reset").rows()[0] == (3, -1, 7, False)
    assert evicts["sequence"].to_list() == [3, 9, 9]
    alone = read(tmp_path, otlp.line(otlp.resource(), spans[2:3])).evicts
    assert alone.select("sequence", "missing").rows() == [(0, 7)]


def test_missing_records_count_once_per_span(tmp_path: Path) -> None:
    capture = read(tmp_path, otlp.line(otlp.resource(), [otlp.store(1, 1, MISSING_RECORDS=5)]))
    assert capture.stores["missing"].to_list() == [5, 0]


def test_groups_without_their_lookup_go(tmp_path: Path) -> None:
    capture = read(tmp_path, otlp.line(otlp.resource(), [otlp.group(1, parent=2), otlp.lookup(3, 3)]))
    assert (capture.spans, capture.groups.height) == (2, 0)


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(LINES), cut=st.integers(0, len(LINES)), again=st.booleans())
def test_order_and_split_of_the_lines_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, order: list[bytes], cut: int, again: bool
) -> None:
    folder = tmp_path_factory.mktemp("split")
    files = [b"".join(part) for part in (order[:cut], order[cut:]) if part]
    whole = read(folder, b"".join(LINES))
    parts = read(folder, *files, *files[:1] * again)
    assert_same(parts, whole)
    assert bool(parts.notes) == again


def test_a_span_that_comes_twice_counts_once(tmp_path: Path) -> None:
    content = b"".join(LINES)
    capture = read(tmp_path, content, content)
    assert_same(capture, read(tmp_path, content))
    assert capture.notes == ["10 spans came more than once and counted once"]
    assert "read once" in open_capture([tmp_path / "0.jsonl"] * 2).notes[0]


def other(line: bytes, **changed: object) -> bytes:
    """Return a line whose span has other values, or lacks what is None."""
    (owner,) = json.loads(line)["resourceSpans"]
    (span,) = owner["scopeSpans"][0]["spans"]
    values = {names.__dict__[name]: value for name, value in changed.items()}
    kept = [each for each in span["attributes"] if each["key"] not in values]
    there = otlp.attributes({name: value for name, value in values.items() if value is not None})
    return otlp.line(owner["resource"], [{**span, "attributes": [*kept, *there]}])


DIFFERENT = {
    "a number": (LINES[2], {"LOOKUP_PROMPT_TOKENS": 91910}),
    "a text as long": (LINES[2], {"REQUEST_ID": "repeat-1"}),
    "read exactly": (LINES[2], {"FINGERPRINT_LADDER": None, "EVIDENCE_NUMBER": 9}),
    "several rows": (LINES[0], {"STORE_STORED": ["1600", "1600-9600/1600"]}),
    "a reason less": (LINES[5], {"EVICT_KEYS": None}),
    "what was dropped": (LINES[1], {"SAMPLING_DROPPED": 5}),
}


@pytest.mark.parametrize(("line", "changed"), DIFFERENT.values(), ids=DIFFERENT)
def test_of_different_copies_the_same_one_counts_in_any_order(
    tmp_path: Path, line: bytes, changed: dict[str, object]
) -> None:
    first, second = b"".join(LINES), b"".join(LINES).replace(line, other(line, **changed))
    assert first != second
    captures = [read(tmp_path, *each) for each in ((first, second), (second, first), (second, first, second))]
    for capture in captures[1:]:
        assert_same(capture, captures[0])
        assert capture.sampled_spans == captures[0].sampled_spans
    alone = [read(tmp_path, each) for each in (first, second)]
    assert captures[0].spans == alone[0].spans
    if "SAMPLING_DROPPED" not in changed:
        assert captures[0].notes == [
            "10 spans came more than once and counted once; the copies of 1 are not the same: the one that holds most "
            "counted"
        ]


def test_of_copies_the_one_that_holds_most_counts(tmp_path: Path) -> None:
    """Something on the way took fingerprints from some of them."""
    whole = LINES[2] + otlp.line(otlp.resource(), [otlp.lookup(31, 4), otlp.lookup(32, 5), otlp.lookup(33, 6)])
    bare = b"".join(
        otlp.line(otlp.resource(), [otlp.lookup(each, number, FINGERPRINT_VALUES=None)])
        for each, number in ((12, 3), (31, 4), (32, 5), (33, 6))
    )
    for files in ((whole, bare), (bare, whole)):
        assert_same(read(tmp_path, *files), read(tmp_path, whole))


def test_of_different_copies_of_others_spans_the_same_one_counts(tmp_path: Path) -> None:
    copies = [
        otlp.line({}, [otlp.span("chat", {names.USAGE_INPUT_TOKENS: tokens}, span_id=91)], scope="other")
        for tokens in (7, 8)
    ]
    one, two = (read(tmp_path, LINES[0], *each) for each in (copies, copies[::-1]))
    assert one.usages.height == 1
    assert_same(one, two)


def test_files_folders_globs_and_gzip_are_one_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "captures"
    (folder / "deep").mkdir(parents=True)
    (folder / "one").write_bytes(b"".join(LINES[:3]))
    (folder / "deep" / "two.json.gz").write_bytes(gzip.compress(b"".join(LINES[3:6])))
    (folder / "deep" / "three.log").write_bytes(b"\xef\xbb\xbf\n" + b"\r\n".join(LINES[6:]))
    (folder / "README.md").write_text("not a capture")
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / ".hidden.jsonl").write_text("{")
    whole = read(tmp_path, b"".join(LINES))
    assert_same(open_capture([folder]), whole)
    assert_same(open_capture([f"{folder}/one", f"{folder}/d*/*"]), whole)
    assert_same(open_capture([f"{folder}/**/[ot]*"]), whole)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"".join(LINES)))))
    assert_same(open_capture(["-"]), whole)


def parquet(path: Path, **changed: pl.Series) -> Path:
    owners = [json.loads(written)["resourceSpans"][0] for written in LINES]
    rows: list[dict[str, object]] = []
    for owner in owners:
        (span,) = owner["scopeSpans"][0]["spans"]
        row = {
            "trace_id": span["traceId"],
            "span_id": span["spanId"],
            "parent_span_id": span.get("parentSpanId", ""),
            "name": span["name"],
            "kind": "internal",
            "start": int(span["startTimeUnixNano"]),
            "end": int(span["endTimeUnixNano"]),
            "resource": json.dumps(plain(owner["resource"]["attributes"])),
            "attributes": json.dumps(plain(span["attributes"])),
            "links": "[]",
            "scope": "otel_cache",
        }
        rows.append(row)
    pl.DataFrame(rows).with_columns(**changed).write_parquet(path)
    return path


def plain(attributes: list[dict[str, object]]) -> dict[str, object]:
    def value(encoded: dict[str, object]) -> object:
        ((kind, held),) = encoded.items()
        if kind == "arrayValue":
            return [value(each) for each in held["values"]]  # type: ignore[index]
        return int(held) if kind == "intValue" else held  # type: ignore[call-overload]

    return {each["key"]: value(each["value"]) for each in attributes}  # type: ignore[arg-type,misc]


def test_parquet_reads_like_json_lines(tmp_path: Path) -> None:
    path = parquet(tmp_path / "spans.any")
    assert_same(open_capture([path]), read(tmp_path, b"".join(LINES)))


def test_foreign_and_damaged_rows_of_parquet_are_counted(tmp_path: Path) -> None:
    count = len(LINES)
    path = parquet(
        tmp_path / "spans",
        scope=pl.Series(["other"] + ["otel_cache"] * (count - 1)),
        attributes=pl.Series(["{}", "{", "[1]"] + ["{}"] * (count - 3)),
    )
    capture = open_capture([path])
    assert (capture.foreign_spans, capture.spans) == (1, 1)
    assert capture.skipped_lines == count - 2
    assert f"{path} row 2: the attributes are not a JSON object" in capture.notes[0]


def test_numbers_stand_in_quotes_or_not(tmp_path: Path) -> None:
    content = b"".join(LINES)
    unquoted = otlp.line(otlp.resource(), SPANS).replace(b'"intValue":"11910"', b'"intValue":11910')
    assert unquoted.count(b'"intValue":11910') == 1
    rest = b"".join(LINES[len(SPANS) :])
    assert_same(read(tmp_path, unquoted + rest), read(tmp_path, content))


def test_what_other_programs_say_of_a_request_is_read_under_every_name(tmp_path: Path) -> None:
    spans = [
        otlp.span("llm_request", {"gen_ai.request.id": "a", "gen_ai.usage.prompt_tokens": 11910}, span_id=90),
        otlp.span("chat", {names.USAGE_INPUT_TOKENS: 7, "gen_ai.usage.cache_read_input_tokens": 5}, span_id=91),
        otlp.span("chat", {names.USAGE_CACHE_READ_TOKENS: 6}, span_id=92, parent=91),
        otlp.span("chat", {"gen_ai.usage.cost": 0.5}, span_id=93),
        otlp.span("GET", {"http.route": "/"}, span_id=94),
        otlp.span("match_block_keys", {ROUTER + "key_count": 8, ROUTER + "longest_chain": 3}, span_id=95),
    ]
    foreign = otlp.line(otlp.resource(), spans, scope="vllm.api")
    capture = read(tmp_path, LINES[0], foreign, foreign)
    said = capture.usages.select("name", "request_id", "prompt_tokens", "cache_read_tokens").rows()
    assert said[:3] == [("llm_request", "a", 11910, None), ("chat", None, 7, 5), ("chat", None, None, 6)]
    assert capture.usages.select("name", "router_keys", "router_blocks").rows()[3:] == [("match_block_keys", 8, 3)]
    assert (capture.spans, capture.foreign_spans) == (1, 12)


def test_what_sampling_kept_back_is_counted_apart(tmp_path: Path) -> None:
    line = otlp.line(otlp.resource(), [otlp.lookup(1, 1, SAMPLING_DROPPED=3), otlp.step(2, 2, EXPORT_DROPPED=2)])
    capture = read(tmp_path, line, line)
    assert (capture.sampled_spans, capture.unexported_spans) == (3, 2)


@pytest.mark.parametrize("sampled_first", [True, False])
def test_a_sampled_copy_beside_the_evidence_makes_no_life_sampled(tmp_path: Path, sampled_first: bool) -> None:
    """Spans of every kind, those among them that are no plain rows and are read one by one."""
    kept = otlp.line(otlp.resource(**{names.COLLECTOR_SAMPLER: "10 %"}), SPANS)
    assert read(tmp_path, kept).lives[0].attributes[names.COLLECTOR_SAMPLER] == "10 %"
    whole = otlp.line(otlp.resource(), SPANS)
    both = read(tmp_path, *((kept, whole) if sampled_first else (whole, kept)))
    assert_same(both, read(tmp_path, whole))
