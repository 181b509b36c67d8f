"""Workers' spans, and the steps that they belong to."""

from pathlib import Path

from otel_cache.records import Batch, Chunk, Record, Replica
from otel_cache.semconv import names
from otel_cache.sidecar.build import MAX_LIVES, ProcessBuilder
from otel_cache.sidecar.ids import Context
from otel_cache.sidecar.otlp_json import JsonLinesWriter
from otel_cache.sidecar.spans import SpanData

from .support import done, evict, executed, hello, lookup, named, read_lines, replica, step

CONTEXT = bytes(range(24))
STEP = Context(CONTEXT[:16], CONTEXT[16:])
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def build(*records: Record, process: str = "ab12") -> list[SpanData]:
    builder = ProcessBuilder(hello(process))
    spans = builder.add(Batch(0, list(records))) + builder.close()
    assert builder.failed == 0
    return spans


def test_a_worker_s_span_is_below_the_step_s() -> None:
    scheduler = build(replica(), evict(1), step(2, 3, context=CONTEXT), done(3, 3))
    worker = build(Replica(0, 0, 1, {names.WORKER_RANK: 2, "host.name": "b"}), executed(1, CONTEXT, 3), process="cd34")
    (run,) = worker
    (scheduled,) = [span for span in scheduler if span.name == names.STEP]
    (gone,) = [span for span in scheduler if span.name == names.EVICT]
    assert scheduled.context == gone.parent == run.parent == STEP
    assert (run.name, run.start, run.end) == (names.EXECUTE, 400, 450)
    assert run.context.trace_id == STEP.trace_id
    assert run.context != STEP
    assert run.attributes == {names.RECORD_SEQUENCE: 1, names.STEP_INDEX: 3, names.WORKER_RANK: 2}
    assert (run.resource.attributes["host.name"], run.resource.attributes["service.instance.id"]) == ("b", "cd34-0")


def test_a_step_that_no_context_names_begins_a_trace() -> None:
    for context in (b"", bytes(24), CONTEXT[:16], CONTEXT + b"0"):
        (scheduled,) = build(replica(), step(1, context=context))
        assert scheduled.context != STEP
        assert scheduled.context.trace_id and scheduled.context.span_id
        (run,) = build(executed(0, context))
        assert run.parent is None
        assert names.WORKER_RANK not in run.attributes, "it was not introduced"


def test_a_worker_says_nothing_of_missing_records() -> None:
    builder = ProcessBuilder(hello())
    spans = builder.add(Batch(9, [Replica(0, 0, 1, {names.WORKER_RANK: 0}), executed(7, CONTEXT)])) + builder.close()
    assert [span.name for span in spans] == [names.EXECUTE]
    assert builder.missing == 9


def test_a_worker_in_the_scheduler_s_process_has_no_part_in_its_evidence() -> None:
    spans = build(
        replica(), Replica(1, 1, 1, {names.WORKER_RANK: 0}), lookup(2), executed(5, CONTEXT), lookup(6, "p")
    )  # fmt: skip
    evidence = [span for span in spans if names.EVIDENCE_NUMBER in span.attributes]
    assert [span.attributes.get(names.MISSING_RECORDS) for span in evidence] == [2, None]


def test_the_lives_of_a_process_are_bounded() -> None:
    builder = ProcessBuilder(hello())
    builder.add(Batch(0, [replica(number, number) for number in range(MAX_LIVES + 3)]))
    assert builder.failed == 3


def test_links_and_trace_state_in_json(tmp_path: Path) -> None:
    writer = JsonLinesWriter(str(tmp_path / "spans.jsonl"))
    writer.write(
        build(
            replica(), lookup(1, traceparent=PARENT, tracestate="vendor=a"),
            evict(2, 0, positions=[9600], fingerprints=bytes(range(40, 48)), keys=[], ages=[1], blocks=[11]),
            step(3, chunks=[Chunk("q", 0, 9, True)]), lookup(4, "again"), step(5, 1),
        )
    )  # fmt: skip
    writer.close()
    spans = read_lines(tmp_path / "spans.jsonl")
    (first, again) = named(spans, names.LOOKUP)
    assert (first.trace_state, again.trace_state) == ("vendor=a", "")
    (gone,) = named(spans, names.EVICT)
    assert again.links == [(gone.trace_id, gone.span_id)]
    assert again.link_attributes == [{names.LINK_REASON: names.LINK_EVICTED}]
    assert named(spans, names.STEP)[0].link_attributes == [{}]
