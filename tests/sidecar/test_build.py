"""Records to spans, without a process in between."""

from collections.abc import Sequence
from typing import Any

import pytest

from otel_cache.records import Batch, Chunk, Record, Reset
from otel_cache.semconv import names
from otel_cache.sidecar.build import Processes
from otel_cache.sidecar.ids import parse_traceparent
from otel_cache.sidecar.spans import SpanData, SpanLink
from otel_cache.sidecar.steps import MAX_OPEN_STEPS

from .support import done, evict, hello, lookup, replica, step, store, whole_request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def build(*records: Record, close: bool = True, dropped: int = 0) -> list[SpanData]:
    builder = Processes().get(hello())
    spans = builder.add(Batch(dropped, list(records)))
    assert builder.failed == 0
    return spans + builder.close() if close else spans


def of(spans: Sequence[SpanData], name: str) -> list[SpanData]:
    return [span for span in spans if span.name == name]


def test_a_request_is_one_trace_with_its_lookup_and_store():
    spans = build(*whole_request(), close=False)

    (request,) = of(spans, names.REQUEST)
    (found,) = of(spans, names.LOOKUP)
    (stored,) = of(spans, names.STORE)
    assert (request.start, request.end, request.parent) == (50, 2_000_000_000, None)
    assert request.attributes == {
        names.REQUEST_ID: "q", names.REQUEST_PROMPT_TOKENS: 11910, names.REQUEST_HIT_TOKENS: 0,
        names.USAGE_INPUT_TOKENS: 11910, names.USAGE_CACHE_READ_TOKENS: 0, names.FINGERPRINT_PROMPT: "ZGRkZGRkZGQ=",
        names.REQUEST_QUEUE_DURATION: 240e-9, names.REQUEST_PREEMPTIONS: 0,
        names.LOOKUP_LIMITED_BY: names.LIMITED_BY_GROUP_STATE,
    }  # fmt: skip
    assert found.parent == stored.parent == request.context
    assert found.attributes[names.LOOKUP_ADMITTED_TOKENS] == 0
    assert found.attributes[names.LOOKUP_LIMITING_GROUPS] == [0, 1, 2]
    assert found.attributes[names.LOOKUP_SUMMARY] == (
        "hit 0 of 11910: groups 0,1,2 (mamba) have no state at 9600, which group 3 (full_attention) holds"
    )
    assert found.attributes[names.FINGERPRINT_FIRST] == 1600
    assert names.FINGERPRINT_HIT not in found.attributes
    groups = of(spans, names.GROUP_LOOKUP)
    assert [group.attributes[names.GROUP_IDS] for group in groups] == [[3], [0, 1, 2]]
    assert all(group.parent == found.context for group in groups)
    assert groups[0].attributes[names.GROUP_PASS_HIT] == [9600, 0]
    assert groups[0].attributes[names.GROUP_HIT_TOKENS] == 0
    assert groups[0].attributes[names.GROUP_STORED_BELOW] == 11200
    assert groups[0].attributes[names.GROUP_STORED_ABOVE] == 1600
    assert names.GROUP_STORED_BELOW not in groups[1].attributes
    assert len({span.context.trace_id for span in (request, found, stored, *groups)}) == 1


def test_stores_of_a_step_are_one_span_with_its_chunk():
    (stored,) = of(build(*whole_request()), names.STORE)

    assert stored.attributes[names.GROUP_IDS] == [0, 3]
    assert stored.attributes[names.STORE_ORIGIN] == names.ORIGIN_PREFILL
    assert (stored.attributes[names.STORE_CHUNK_START], stored.attributes[names.STORE_CHUNK_END]) == (8000, 9600)
    assert stored.attributes[names.STORE_STORED] == ["9600", "9600"]
    assert stored.attributes[names.STORE_NOT_MATERIALIZED] == ["1600-6400/1600"] * 2
    assert stored.attributes[names.RECORD_SEQUENCE] == 3


def test_a_store_without_a_chunk_came_from_elsewhere():
    decode = Chunk("d", 12000, 12001, False)
    spans = build(replica(), store(1), store(2, request="d", fingerprints=b"f" * 16), step(3, chunks=[decode]))

    external, decoded = of(spans, names.STORE)
    assert external.attributes[names.STORE_ORIGIN] == names.ORIGIN_EXTERNAL
    assert names.STORE_CHUNK_START not in external.attributes
    assert decoded.attributes[names.STORE_ORIGIN] == names.ORIGIN_DECODE
    assert decoded.attributes[names.FINGERPRINT_VALUES] == ["ZmZmZmZmZmZmZmZmZmZmZg=="]


def test_attempts_with_one_outcome_are_one_span():
    spans = build(replica(), lookup(1), step(2), lookup(3, start=300), step(4, 1), lookup(5, start=500, uncached=0))

    first, second = of(spans, names.LOOKUP)
    assert first.attributes[names.LOOKUP_ATTEMPTS] == 2
    assert (first.start, first.end) == (100, 310)
    assert first.attributes[names.RECORD_SEQUENCE] == 3
    assert first.attributes[names.LOOKUP_ADMITTED] is False
    assert second.attributes[names.LOOKUP_ATTEMPTS] == 1


def test_a_lookup_after_an_admission_is_another_one():
    spans = build(replica(), lookup(1), step(2, admitted={"q": 0}), lookup(3, start=300))

    assert [span.attributes[names.LOOKUP_ADMITTED] for span in of(spans, names.LOOKUP)] == [True, False]


def test_evictions_of_a_step_are_one_span_per_evictor():
    given = step(5, owner_groups={11: 3, 12: 0})
    spans = build(replica(), lookup(1), evict(2), evict(3, group=3), evict(4, evictor=""), given, done(6))

    by_request, by_nobody = of(spans, names.EVICT)
    (scheduled,) = of(spans, names.STEP)
    (request,) = of(spans, names.REQUEST)
    assert by_request.attributes[names.GROUP_IDS] == [0, 3]
    assert by_request.attributes[names.EVICT_BLOCKS] == [2, 2]
    assert by_request.attributes[names.EVICT_MAMBA_BLOCKS] == 2
    assert by_request.attributes[names.EVICT_FULL_ATTENTION_BLOCKS] == 2
    assert names.EVICT_SLIDING_WINDOW_BLOCKS not in by_request.attributes
    assert by_request.attributes[names.EVICT_POSITIONS] == ["3200,1600"] * 2
    assert by_request.attributes[names.EVICT_AGE] == [7, 7]
    assert by_request.attributes[names.EVICT_KEYS] == ["", ""]
    assert by_request.attributes[names.EVICT_EVICTOR_GROUPS] == ["3,0", "3,0"]
    assert by_request.parent == by_nobody.parent == scheduled.context
    assert by_request.links == [SpanLink(request.context)]
    assert not by_nobody.links
    assert names.EVICT_EVICTOR_REQUEST_ID not in by_nobody.attributes
    assert names.EVICT_EVICTOR_GROUPS not in by_nobody.attributes


def test_what_kinds_of_groups_lost_is_summed_by_kind_and_unknown_ones_are_others():
    many = replica(**{names.GROUPS_KIND: ["mamba", "mamba", "some_new_attention", "sliding_window"]})
    groups = [evict(2 + group, group=group) for group in range(5)]
    (gone,) = of(build(many, lookup(1), *groups, step(8), done(9)), names.EVICT)

    assert gone.attributes[names.EVICT_MAMBA_BLOCKS] == 4
    assert gone.attributes[names.EVICT_SLIDING_WINDOW_BLOCKS] == 2
    assert gone.attributes[names.EVICT_OTHER_BLOCKS] == 4, "of a kind without a name here, and of a fifth group"
    assert sum(gone.attributes[names.EVICT_BLOCKS]) == 10


@pytest.mark.parametrize(("groups", "said"), [({11: 2, 12: 2}, "2"), ({}, "")])
def test_one_evicting_group_is_named_once_and_none_where_an_older_plugin_does_not_say(groups: Any, said: str):
    spans = build(replica(), lookup(1), evict(2), step(3, owner_groups=groups), done(4))

    assert of(spans, names.EVICT)[0].attributes[names.EVICT_EVICTOR_GROUPS] == [said]


def test_spans_keep_the_order_of_what_happened():
    """A key that is stored, replaced and stored again is there in the end; one span for both stores would lose it."""
    spans = build(replica(), lookup(1), store(2), evict(3, reason="replaced"), store(4), store(5, 3), step(6))

    evidence = [span for span in spans if span.name in (names.STORE, names.EVICT)]
    evidence.sort(key=lambda span: span.attributes[names.RECORD_SEQUENCE])
    assert [span.name for span in evidence] == [names.STORE, names.EVICT, names.STORE]
    assert [span.attributes[names.GROUP_IDS] for span in evidence] == [[0], [0], [0, 3]]
    assert evidence[1].attributes[names.EVICT_REASON] == "replaced"
    assert names.EVICT_EVICTOR_REQUEST_ID not in evidence[1].attributes


def test_a_reset_is_an_evict_span():
    (reset,) = of(build(replica(), Reset(1, 0, 77), step(2)), names.EVICT)

    assert reset.attributes[names.EVICT_RESET] is True
    assert (reset.start, reset.end) == (77, 77)


def test_a_step_ends_with_its_execution():
    chunks = [Chunk(f"r{number}", 0, 1, True) for number in range(200)]
    lookups = [lookup(number + 1, f"r{number}") for number in range(200)]
    spans = build(replica(), *lookups, step(201, chunks=chunks), done(202), close=False)

    (scheduled,) = of(spans, names.STEP)
    assert scheduled.parent is None
    assert len(scheduled.links) == 128
    assert scheduled.attributes[names.STEP_EXECUTE_DURATION] == 1.0
    assert scheduled.end == 1_000_000_300


def test_steps_that_are_never_done_do_not_pile_up():
    spans = build(replica(), *(step(number + 1, number) for number in range(100)), close=False)

    assert len(of(spans, names.STEP)) == 100 - MAX_OPEN_STEPS
    assert names.STEP_EXECUTE_DURATION not in spans[0].attributes


def test_the_caller_s_trace_goes_on():
    (request,) = of(build(replica(), lookup(1, traceparent=PARENT)), names.REQUEST)

    assert request.parent == parse_traceparent(PARENT)
    assert request.remote_parent
    assert request.context.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"


def test_what_is_no_traceparent_begins_a_trace():
    zero = "00-" + "0" * 32 + "-b7ad6b7169203331-01"
    for text in ("", "rubbish", zero, PARENT[:-3], "ff" + PARENT[2:], PARENT + "-more"):
        assert parse_traceparent(text) is None
        assert of(build(replica(), lookup(1, traceparent=text)), names.REQUEST)[0].parent is None
    assert parse_traceparent("01" + PARENT[2:] + "-more") is not None


def test_holes_are_stated_once_on_every_replica():
    spans = build(
        replica(), replica(1, 1), lookup(2), lookup(3, "p", replica=1), step(7, admitted={"q": 0}),
        step(8, replica=1, admitted={"p": 0}), lookup(9, "r"), step(10, 1, admitted={"r": 0}), dropped=3,
    )  # fmt: skip

    counts = [
        (span.attributes[names.REQUEST_ID], span.attributes.get(names.MISSING_RECORDS))
        for span in of(spans, names.LOOKUP)
    ]
    assert counts == [("q", 3), ("p", 3), ("r", None)]
    assert not of(spans, names.EVICT)


def test_drops_after_the_last_record_are_stated_at_the_end():
    spans = build(replica(), lookup(1), step(2, admitted={"q": 0}), dropped=4)

    (count,) = of(spans, names.EVICT)
    assert count.attributes[names.MISSING_RECORDS] == 4
    assert count.attributes[names.GROUP_IDS] == []
    assert count.start == count.end


def test_a_hole_parts_stores_from_the_next_step():
    chunk = Chunk("q", 0, 2000, True)
    (stored,) = of(build(replica(), store(1), step(5, chunks=[chunk])), names.STORE)

    assert stored.attributes[names.STORE_ORIGIN] == names.ORIGIN_EXTERNAL
    assert stored.attributes[names.MISSING_RECORDS] == 3


def test_evidence_is_numbered_without_a_hole():
    spans = build(*whole_request(), lookup(10, "p"), store(11, request="p"))
    evidence = [span for span in spans if names.EVIDENCE_NUMBER in span.attributes]

    assert [span.attributes[names.EVIDENCE_NUMBER] for span in evidence] == list(range(len(evidence)))
    assert {span.name for span in evidence} == {names.LOOKUP, names.STORE, names.EVICT}


def test_a_process_that_connects_again_goes_on_where_it_was():
    processes = Processes()
    builder = processes.get(hello())
    builder.add(Batch(0, [replica(), lookup(1)]))
    before = builder.close()
    again = processes.get(hello())
    after = again.add(Batch(0, [replica(), lookup(1), lookup(2, "p"), step(3, admitted={"p": 0})]))

    assert again is builder
    assert [span.attributes[names.EVIDENCE_NUMBER] for span in of(before + after, names.LOOKUP)] == [0, 1]
    assert not any(names.MISSING_RECORDS in span.attributes for span in after)


def test_records_of_a_replica_that_was_not_introduced_still_count():
    spans = build(lookup(0), step(1, admitted={"q": 0}))

    assert of(spans, names.LOOKUP)[0].resource.attributes["service.instance.id"] == "ab12-0"
    assert names.FINGERPRINT_FIRST not in of(spans, names.LOOKUP)[0].attributes


def test_the_resource_takes_the_environment_in(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    attributes = of(build(*whole_request()), names.REQUEST)[0].resource.attributes
    named = of(build(replica(**{"service.name": "its own"}), lookup(1)), names.REQUEST)[0].resource.attributes

    assert attributes["deployment.environment.name"] == "test"
    assert attributes["service.name"] == "mine"
    assert attributes["telemetry.sdk.name"] == "opentelemetry"
    assert named["service.name"] == "its own"
