"""What a request's span says, and what is kept of the requests that are under way."""

from collections.abc import Mapping

import pytest

from otel_cache.records import Batch, Chunk, Record
from otel_cache.semconv import names
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.requests import RequestTable
from otel_cache.sidecar.resource import read_settings
from otel_cache.sidecar.spans import SpanData, Value, to_readable

from .support import ATTRIBUTES, done, finished, hello, lookup, replica, step, store

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = 1_000_000_000
FIRST_CHUNK, LAST_CHUNK, DECODE = (
    Chunk("q", *bounds) for bounds in [(0, 8000, True), (8000, 11910, True), (11910, 11911, False)]
)


def requests(*records: Record) -> list[SpanData]:
    builder = ProcessBuilder(hello())
    spans = builder.add(Batch(0, [replica(), *records])) + builder.close()
    assert builder.failed == 0
    return [span for span in spans if span.name == names.REQUEST]


def attributes(*records: Record) -> Mapping[str, Value]:
    (span,) = requests(*records)
    return span.attributes


def test_a_request_from_arrival_to_finish() -> None:
    (span,) = requests(
        lookup(1, start=2 * SECOND, arrival=1 * SECOND, session=b"s" * 8, key=b"k" * 8, digest=b"d" * 8),
        step(2, 0, 3 * SECOND, end=4 * SECOND, admitted={"q": 0}, chunks=[FIRST_CHUNK]),
        done(3, 0, 5 * SECOND),
        step(4, 1, 6 * SECOND, chunks=[LAST_CHUNK]),
        done(5, 1, 8 * SECOND),
        step(6, 2, 9 * SECOND, chunks=[DECODE]),
        finished(7, time=10 * SECOND, preemptions=2, drafted=8, accepted=5),
        done(8, 2, 11 * SECOND),
        step(9, 3, 20 * SECOND, finished=["q"]),
    )
    assert (span.start, span.end) == (SECOND, 10 * SECOND)
    assert span.attributes == {
        names.REQUEST_ID: "q",
        names.REQUEST_SESSION_DIGEST: "c3Nzc3Nzc3M=",
        names.FINGERPRINT_PROMPT: "ZGRkZGRkZGQ=",
        names.KEY_DIGEST: "a2tra2tra2s=",
        names.REQUEST_PROMPT_TOKENS: 11910,
        names.USAGE_INPUT_TOKENS: 11910,
        names.REQUEST_HIT_TOKENS: 0,
        names.USAGE_CACHE_READ_TOKENS: 0,
        names.LOOKUP_LIMITED_BY: names.LIMITED_BY_GROUP_STATE,
        names.REQUEST_QUEUE_DURATION: 3.0,
        names.REQUEST_TIME_TO_FIRST_TOKEN: 7.00000001,
        names.REQUEST_PREEMPTIONS: 2,
        names.REQUEST_OUTPUT_TOKENS: 7,
        names.USAGE_OUTPUT_TOKENS: 7,
        names.REQUEST_DRAFTED_TOKENS: 8,
        names.REQUEST_ACCEPTED_TOKENS: 5,
        names.REQUEST_FINISH_REASON: "stop",
    }


def test_what_is_not_known_is_not_said() -> None:
    said = attributes(lookup(1, arrival=0, digest=b""), finished(2, reason=""))
    assert said == {
        names.REQUEST_ID: "q", names.REQUEST_PROMPT_TOKENS: 11910, names.USAGE_INPUT_TOKENS: 11910,
        names.REQUEST_PREEMPTIONS: 0, names.REQUEST_OUTPUT_TOKENS: 7, names.USAGE_OUTPUT_TOKENS: 7,
    }  # fmt: skip


def test_the_end_is_that_of_the_step_where_nothing_else_is_known() -> None:
    (span,) = requests(lookup(1), step(2, admitted={"q": 0}, preempted=["q"]), step(3, 1, 700, finished=["q"]))
    assert span.end == 700
    assert span.attributes[names.REQUEST_PREEMPTIONS] == 1
    assert names.REQUEST_FINISH_REASON not in span.attributes


def test_the_end_of_a_request_that_nobody_knows() -> None:
    assert requests(finished(1), step(2, finished=["q"])) == []


@pytest.mark.parametrize(
    ("name", "external"),
    [
        ("chatcmpl-7-0123abcd", "chatcmpl-7"), ("a\nb-00000000", "a\nb"), ("chatcmpl-7", None), ("-0123abcd", None),
        ("cmpl-0123ABCD", None), ("cmpl-0123abc", None), ("cmpl0123abcd", None), ("cmpl-0123abcd-0", None),
    ],
)  # fmt: skip
def test_the_api_s_id(name: str, external: str | None) -> None:
    assert attributes(lookup(1, name)).get(names.REQUEST_EXTERNAL_ID) == external


def test_only_the_first_admission_and_the_first_token_count() -> None:
    again = Chunk("q", 0, 11912, True)
    said = attributes(
        lookup(1, arrival=SECOND),
        step(2, 0, 2 * SECOND, end=3 * SECOND, admitted={"q": 0}, chunks=[Chunk("q", 0, 11910, True)]),
        done(3, 0, 4 * SECOND),
        step(4, 1, 5 * SECOND, preempted=["q"]),
        lookup(5, start=6 * SECOND, tokens=11912, hit=1600),
        step(6, 2, 7 * SECOND, admitted={"q": 1600}, chunks=[again]),
        done(7, 2, 8 * SECOND),
    )
    assert said[names.REQUEST_QUEUE_DURATION] == 2.0
    assert said[names.REQUEST_TIME_TO_FIRST_TOKEN] == 3.00000001
    assert (said[names.REQUEST_HIT_TOKENS], said[names.REQUEST_PREEMPTIONS]) == (0, 1)


def test_a_preemption_before_the_first_token_does_not_hide_it() -> None:
    said = attributes(
        lookup(1, arrival=SECOND), step(2, 0, admitted={"q": 0}, chunks=[FIRST_CHUNK]), done(3, 0, 2 * SECOND),
        step(4, 1, preempted=["q"]), lookup(5, arrival=SECOND),
        step(6, 2, admitted={"q": 0}, chunks=[Chunk("q", 0, 11910, True)]), done(7, 2, 8 * SECOND),
    )  # fmt: skip
    assert said[names.REQUEST_TIME_TO_FIRST_TOKEN] == 7.00000001


def test_a_request_whose_beginning_was_not_seen_has_no_times() -> None:
    said = attributes(
        lookup(1, tokens=11950, arrival=SECOND),
        step(2, admitted={"q": 0}, chunks=[Chunk("q", 0, 11950, True)]), done(3, 0, 2 * SECOND),
    )  # fmt: skip
    assert {names.REQUEST_QUEUE_DURATION, names.REQUEST_TIME_TO_FIRST_TOKEN}.isdisjoint(said)
    assert names.FINGERPRINT_PROMPT not in said, "it is of the output too"


def test_a_first_token_whose_step_was_lost_is_not_told_of_a_later_one() -> None:
    said = attributes(lookup(1, arrival=SECOND), step(5, admitted={"q": 0}, chunks=[DECODE]), done(6, 0, 2 * SECOND))
    assert names.REQUEST_TIME_TO_FIRST_TOKEN not in said


def test_a_connector_s_tokens_and_discarded_ones() -> None:
    def of_lookup(hit: int, admitted: int) -> Mapping[str, Value]:
        builder = ProcessBuilder(hello())
        spans = builder.add(Batch(0, [replica(), lookup(1, hit=hit), step(2, admitted={"q": admitted})]))
        return next(span.attributes for span in spans if span.name == names.LOOKUP)

    brought, dropped, exact = of_lookup(1600, 4800), of_lookup(4800, 1600), of_lookup(1600, 1600)
    assert (brought[names.LOOKUP_EXTERNAL_TOKENS], names.LOOKUP_DISCARDED_TOKENS in brought) == (3200, False)
    assert (dropped[names.LOOKUP_DISCARDED_TOKENS], names.LOOKUP_EXTERNAL_TOKENS in dropped) == (3200, False)
    assert {names.LOOKUP_EXTERNAL_TOKENS, names.LOOKUP_DISCARDED_TOKENS}.isdisjoint(exact)
    assert attributes(lookup(1, hit=1600), step(2, admitted={"q": 4800}))[names.USAGE_CACHE_READ_TOKENS] == 4800


def test_the_keys_of_a_lookup() -> None:
    builder = ProcessBuilder(hello())
    record = lookup(
        1, lora=b"l" * 8, salt=b"s" * 8, items=[(5, b"i" * 8), (900, b"j" * 8)], plain=b"p" * 8, connector=True
    )
    spans = builder.add(Batch(0, [replica(), record])) + builder.close()
    said = next(span.attributes for span in spans if span.name == names.LOOKUP)
    assert said[names.KEY_LORA] == "bGxsbGxsbGw="
    assert said[names.KEY_SALT] == "c3Nzc3Nzc3M="
    assert (said[names.KEY_ITEM_OFFSETS], said[names.KEY_ITEM_DIGESTS]) == ([5, 900], ["aWlpaWlpaWk=", "ampqampqamo="])
    assert said[names.FINGERPRINT_PLAIN] == ["cHBwcHBwcHA="]
    assert said[names.LOOKUP_CONNECTOR] is True


def test_the_caller_s_trace_state_is_on_every_span_of_the_trace() -> None:
    builder = ProcessBuilder(hello())
    records: list[Record] = [
        replica(), lookup(1, traceparent=PARENT, tracestate="vendor=a,, other=b"), store(2),
        step(3, admitted={"q": 0}), lookup(4, "p", traceparent="rubbish", tracestate="vendor=a"),
    ]  # fmt: skip
    spans = builder.add(Batch(0, records)) + builder.close()
    states = {(span.name, span.trace_state) for span in spans if span.attributes.get(names.REQUEST_ID) == "q"}
    assert states == {
        (name, "vendor=a,other=b") for name in (names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE)
    }
    assert {span.trace_state for span in spans if span.attributes.get(names.REQUEST_ID) == "p"} == {""}
    traced = next(to_readable(span) for span in spans if span.name == names.REQUEST)
    assert traced.context is not None and traced.parent is not None
    assert traced.context.trace_state == traced.parent.trace_state == {"vendor": "a", "other": "b"}


def test_the_requests_that_are_kept_are_bounded_in_number() -> None:
    table = RequestTable(limit=2)
    for time, request in enumerate(["a", "b", "a", "c"]):
        table.touch(request, time)
    assert [request.id for request in iter(table.pop_surplus, None)] == ["b"]


def test_the_requests_that_are_kept_are_bounded_in_bytes() -> None:
    settings = read_settings({**ATTRIBUTES, names.HASH_BLOCK_SIZE: 16})
    table = RequestTable(size=100_000)
    gone = 0
    for number in range(400):
        request = table.look_up(lookup(number, f"r{number}", fingerprints=bytes(8 * 1000), common=b""), settings)
        # What it generates counts as well.
        for block in range(10):
            table.store(
                store(0, request=request.id, first_fingerprint=16 * (1001 + block), fingerprints=bytes(8)), settings
            )
        gone += sum(1 for _ in iter(table.pop_surplus, None))
        assert len(table) == number + 1 - gone <= 12
    assert all(table.pop(f"r{number}") is not None for number in range(400 - len(table), 400))
    assert len(table) == 0
    assert table.pop_surplus() is None
    table.look_up(lookup(1, "huge", fingerprints=bytes(800_000)), settings)
    assert table.pop_surplus() is None, "the only one stays, whatever its size"
