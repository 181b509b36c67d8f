"""The scanners make the frames that the exact readers make, of damaged input too, or leave a record to those."""

import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.readers import batches, open_capture, worker
from analyzers.readers.batches import decode, scan
from analyzers.readers.columns import Batch
from analyzers.readers.framing import Record
from otel_cache.semconv import names
from otel_cache.semconv.types import SPAN_TYPES
from tests.readers.forms import prefixed, protobuf
from tests.readers.test_capture import assert_same
from tests.readers.test_forms import EXAMPLE
from tests.readers.test_fuzz import DAMAGE
from tests.readers.test_tables import CAPTURE

SECONDS = 2


def compact(line: bytes) -> bytes:
    """Return a line as the sidecar and the collector write it: without spaces."""
    return json.dumps(json.loads(line), separators=(",", ":")).encode() + b"\n"


COMPACT = [compact(line) for line in CAPTURE.splitlines() if line.startswith(b'{"resourceSpans"')]
RECORDS: dict[str, list[bytes]] = {"line": COMPACT, "message": [protobuf(line) for line in COMPACT]}


def told(batch: Batch) -> tuple[object, ...]:
    """Return what a batch says, whatever the order in it."""
    frames = {}
    for name, frame in batch.frames.items():
        resource = pl.col("resource").map_elements(lambda at: json.dumps(batch.resources[at]), pl.String)
        whole = frame.select(sorted(frame.columns)).with_columns(resource)
        frames[name] = (whole.schema, sorted(map(repr, whole.iter_rows())))
    return frames, batch.foreign, batch.points, batch.tally.kept(), batch.tally.foreign, batch.tally.skipped


def assert_alike(data: Sequence[bytes], what: str) -> int:
    """Return how many records the scanners left."""
    records = [Record(each, number) for number, each in enumerate(data, 1)]
    batch, left = scan(list(records), "a", what)
    assert told(batch) == told(decode(records, "a", what))
    return left


@pytest.mark.parametrize("what", RECORDS)
def test_what_the_sidecar_writes_is_scanned(what: str) -> None:
    assert assert_alike(list(EXAMPLE if what == "line" else map(protobuf, EXAMPLE)), what) == 0


@pytest.mark.parametrize("what", RECORDS)
def test_what_is_not_scanned_is_read_exactly(what: str) -> None:
    assert assert_alike(RECORDS[what], what) < len(RECORDS[what])


@pytest.mark.parametrize("what", RECORDS)
def test_damage_is_told_alike(what: str) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    tried = 0
    while tried < 20 or time.monotonic() < end:
        data = [chance.choice(DAMAGE)(each, chance)[0] if chance.random() < 0.3 else each for each in RECORDS[what]]
        if what == "line":
            data = [part for each in data for part in each.splitlines(keepends=True) if not part.isspace()]
        tried += 1
        try:
            assert_alike([each for each in data if each], what)
        except Exception as error:
            raise AssertionError(f"seed {seed}, try {tried}") from error


def test_every_byte_in_every_place_of_an_identifier() -> None:
    """An identifier is what `bytes.fromhex` takes, of its length."""
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "parentSpanId": "3" * 16, "name": names.STEP}
    scope = {"scope": {"name": "otel_cache"}, "spans": [{**span, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}]}
    line = json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}, separators=(",", ":")).encode()
    lines, right = [], set()
    for written in (b"1" * 32, b"2" * 16, b"3" * 16):
        begin = line.index(b'"' + written + b'"') + 1
        for place in range(len(written)):
            for byte in range(256):
                changed = written[:place] + bytes([byte]) + written[place + 1 :]
                lines.append(line[:begin] + changed + line[begin + len(written) :])
                with contextlib.suppress(ValueError):
                    if len(bytes.fromhex(changed.decode("latin-1"))) * 2 == len(written):
                        right.add(len(lines))
    assert len(right) == 64 * 22
    assert_alike(lines, "line")
    batch, _ = scan([Record(each, number) for number, each in enumerate(lines, 1)], "a", "line")
    assert set(batch.frames[names.STEP]["line"]) == right


@pytest.mark.parametrize("written", ["0", "-0", "-0.0", "-0e0", "-0E+5", "0.10", "-1", "-10e-1", "5e-324", "1e400"])
def test_a_double_is_the_same_number_however_it_is_written(written: str) -> None:
    value = f'{{"key":"{names.STEP_EXECUTE_DURATION}","value":{{"doubleValue":{written}}}}}'
    span = f'{{"traceId":"{"1" * 32}","spanId":"{"2" * 16}","name":"{names.STEP}","attributes":[{value}]}}'
    scope = f'{{"scope":{{"name":"otel_cache"}},"spans":[{span}]}}'
    for times in ("", '"startTimeUnixNano":"1","endTimeUnixNano":"2",'):
        scoped = scope.replace('"attributes"', f'{times}"attributes"')
        assert_alike([f'{{"resourceSpans":[{{"scopeSpans":[{scoped}]}}]}}'.encode()], "line")


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**70), 2**70))
TEXTS = st.one_of(st.text(), st.text('abc="\\/\x7f\x00 ,:{}[]', max_size=20))
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "int": NUMBERS.flatmap(lambda value: st.sampled_from([{"intValue": value}, {"intValue": str(value)}])),
    "string": TEXTS.map(lambda value: {"stringValue": value}),
    "boolean": st.booleans().map(lambda value: {"boolValue": value}),
    "double": DOUBLES.map(lambda value: {"doubleValue": value}),
    "int[]": st.lists(NUMBERS, max_size=4).map(
        lambda values: {"arrayValue": {"values": [{"intValue": str(value)} for value in values]}}
    ),
    "string[]": st.lists(TEXTS, max_size=4).map(
        lambda values: {"arrayValue": {"values": [{"stringValue": value} for value in values]}}
    ),
}
ATTRIBUTES = st.sampled_from(sorted(SPAN_TYPES)).flatmap(
    lambda name: VALUES[SPAN_TYPES[name]].map(lambda value: {"key": name, "value": value})
)
IDS = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
SPANS = st.fixed_dictionaries(
    {
        "traceId": st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}"),
        "spanId": IDS,
        "name": st.sampled_from([names.LOOKUP, names.STORE, names.STEP, names.EXECUTE, "another"]),
        "startTimeUnixNano": st.integers(0, 2**64).map(str),
        "endTimeUnixNano": st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1).map(str)),
        "attributes": st.lists(ATTRIBUTES, max_size=8),
    },
    optional={
        "parentSpanId": st.one_of(st.just(""), IDS),
        "flags": st.just(256),
        "kind": st.just(1),
        "status": st.just({}),
        "links": st.lists(
            st.fixed_dictionaries(
                {"traceId": st.just("0" * 32), "spanId": IDS},
                optional={"attributes": st.lists(ATTRIBUTES, max_size=2), "flags": st.just(256)},
            ),
            max_size=2,
        ),
    },
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(SPANS, max_size=4), max_size=3))
def test_any_span_is_read_alike(groups: list[list[dict[str, object]]]) -> None:
    lines = [
        json.dumps(
            {"resourceSpans": [{"resource": {"attributes": [{"key": "a", "value": {"stringValue": "ä\"\\"}}]},
                                "scopeSpans": [{"scope": {"name": "otel_cache"}, "spans": spans}]}]},
            separators=(",", ":"), ensure_ascii=False,
        ).encode()
        for spans in groups
    ]  # fmt: skip
    assert_alike(lines, "line")
    assert_alike([message for message in map(messaged, groups) if message], "message")


def messaged(spans: list[dict[str, object]]) -> bytes:
    """Return spans as a message; nothing where Protobuf has no such numbers."""
    resource = {"attributes": [{"key": "a", "value": {"stringValue": "ä"}}]}
    scope = {"scope": {"name": "otel_cache"}, "spans": spans}
    try:
        return protobuf(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode())
    except json_format.ParseError:
        return b""


FORMS_LEFT: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "lines": b"".join,
    "protobuf": lambda lines: prefixed(map(protobuf, lines)),
    "JSON messages": prefixed,
    "with spaces": lambda lines: b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in lines),
}


@pytest.mark.parametrize("form", FORMS_LEFT)
def test_a_large_input_is_the_same_capture(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a part of it is scanned, in threads, or read in other processes."""
    (tmp_path / "spans").write_bytes(FORMS_LEFT[form]([*COMPACT, *COMPACT[::-1]]))
    whole = open_capture(tmp_path / "spans")
    ran = []
    run = worker.run
    monkeypatch.setattr(worker, "run", lambda *given: ran.append(1) or run(*given))
    monkeypatch.setattr(batches, "BATCH_BYTES", len(COMPACT[0]) * 4)
    assert_same(open_capture(tmp_path / "spans"), whole)
    assert bool(ran) == (form == "with spaces")
