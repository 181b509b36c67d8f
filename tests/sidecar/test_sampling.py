"""Sampling and thinning of what is exported; the file is whole throughout."""

import os

import pytest

from otel_cache.errors import UsageError
from otel_cache.records import Executed, Lookup
from otel_cache.semconv import names
from otel_cache.sidecar.settings import read_settings
from otel_cache.sidecar.thinning import LONG, MEDIAN_FROM, RunningMedian

from .support import (
    SPANS,
    Peer,
    done,
    evict,
    hello,
    lookup,
    named,
    read_lines,
    replica,
    status_of,
    step,
    wait_until,
    whole_request,
)

SAMPLER, ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
EXPORT, SHARE = "OTEL_PYTHON_VLLM_CACHE_EXPORT", "OTEL_PYTHON_VLLM_CACHE_STEP_SHARE"
EVIDENCE = {names.LOOKUP, names.STORE, names.EVICT}
MS = 1_000_000


def traceparent(number: int, sampled: bool) -> str:
    return f"00-{number:032x}-{7:016x}-0{int(sampled)}"


def requests_of(callers: list[str]):
    """Return records of requests one after the other, each with its caller's traceparent."""
    records = []
    for number, caller in enumerate(callers):
        for record in whole_request(10 * number, f"r{number}"):
            if isinstance(record, Lookup):
                record = lookup(record.sequence, record.request, traceparent=caller)
            records.append(record)
    return records


def run(start, socket_path, tmp_path, collector, records):
    """Send records to a sidecar; return the spans of its file and of the collector."""
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    peer = Peer(socket_path, hello())
    peer.send(*records)
    peer.close()
    wait_until(lambda: status_of(socket_path).processes == 0 and status_of(socket_path).spans_written)
    sidecar.stop()
    return read_lines(out), collector.spans


def told(spans):
    return sum(span.attributes.get(names.SAMPLING_DROPPED, 0) for span in spans)


def test_all_goes_out_by_default(start, socket_path, tmp_path, collector):
    file, exported = run(start, socket_path, tmp_path, collector, requests_of(["", traceparent(5, True)]))

    assert len(file) == len(exported) == 2 * SPANS
    assert not any(names.SAMPLER in span.resource for span in exported)
    assert told(exported) == 0


def test_the_caller_s_decision_counts_for_its_whole_trace(start, socket_path, tmp_path, collector):
    callers = [traceparent(number + 1, number % 3 == 0) for number in range(9)]
    file, exported = run(start, socket_path, tmp_path, collector, requests_of(callers))

    traces = {span.trace_id for span in named(file, names.REQUEST)}
    kept = {f"{number + 1:032x}" for number in range(9) if number % 3 == 0}
    assert len(file) == 9 * SPANS
    assert traces == {f"{number + 1:032x}" for number in range(9)}
    assert {span.trace_id for span in exported} & traces == kept
    in_traces = [span for span in file if span.trace_id in kept or span.trace_id not in traces]
    assert sorted(span.span_id for span in exported) == sorted(span.span_id for span in in_traces)
    # What is not there is told, but for what no later span could tell of.
    missing = [span for span in file if span.name in EVIDENCE and span.trace_id in traces - kept]
    last = max(span[names.EVIDENCE_NUMBER] for span in exported if span.name in EVIDENCE)
    assert told(exported) == sum(span[names.EVIDENCE_NUMBER] < last for span in missing) > 0
    assert told(file) == 0
    samplers = {span.resource.get(names.SAMPLER) for span in exported} - {None}
    assert len(samplers) == 1 and samplers.pop().startswith("ParentBased")


@pytest.mark.parametrize(
    ("sampler", "argument", "shares"),
    [
        ("always_off", "", (0, 0)),
        ("traceidratio", "0.5", (0.3, 0.7)),
        ("parentbased_traceidratio", "0.1", (0.02, 0.25)),
    ],
)
def test_the_sdk_s_samplers(start, socket_path, tmp_path, collector, monkeypatch, sampler, argument, shares):
    monkeypatch.setenv(SAMPLER, sampler)
    monkeypatch.setenv(ARGUMENT, argument)
    file, exported = run(start, socket_path, tmp_path, collector, requests_of([""] * 200))

    assert len(file) == 200 * SPANS
    assert shares[0] * len(file) <= len(exported) <= shares[1] * len(file)
    by_trace: dict[str, set[str]] = {}
    for span in file:
        by_trace.setdefault(span.trace_id, set()).add(span.span_id)
    # A trace is there as a whole or not at all.
    assert {span.span_id for span in exported} == {
        span for trace in {span.trace_id for span in exported} for span in by_trace[trace]
    }
    assert all("TraceIdRatioBased" in span.resource[names.SAMPLER] for span in exported)


def test_holes_that_sampling_makes_are_told(start, socket_path, tmp_path, collector, monkeypatch):
    monkeypatch.setenv(SAMPLER, "traceidratio")
    monkeypatch.setenv(ARGUMENT, "0.5")
    file, exported = run(start, socket_path, tmp_path, collector, requests_of([""] * 200))

    numbers = sorted(span[names.EVIDENCE_NUMBER] for span in exported if span.name in EVIDENCE)
    written = sorted(span[names.EVIDENCE_NUMBER] for span in file if span.name in EVIDENCE)
    assert written == list(range(len(written)))
    assert told(exported) == numbers[-1] + 1 - len(numbers)


def test_the_running_median():
    median = RunningMedian()
    values = [1.0] * (MEDIAN_FROM - 1) + [100.0] + [1.0] * 50 + [LONG, LONG + 0.1] + [10.0] * 100 + [LONG * 10, 31]
    # Of the latest 129 values 65 are at most 3.1 until 61 + 3 tens have come: then the median itself is 10.
    assert [value for value in values if median.exceeds(value)] == [LONG + 0.1] + [10.0] * 64 + [31]


def executed(number: int, context: bytes, start: int, end: int) -> Executed:
    return Executed(number, 0, number, context, start, end)


def steps(count: int, special: dict[int, dict]):
    """Return steps of 20 ms, each with its worker's run, and records of one step for each in `special`."""
    core, worker = [replica()], [replica(**{names.WORKER_RANK: 0})]
    number = 1
    for index in range(count):
        context, start = os.urandom(24), index * 100 * MS
        changes = dict(special.get(index, {}))
        took = changes.pop("took", 20 * MS)
        if changes.pop("evict", False):
            core.append(evict(number, time=start))
            number += 1
        fields = {"end": start + MS, "prefill_tokens": 0, "context": context, **changes}
        core += [step(number, index, start, **fields), done(number + 1, index, start + MS + took)]
        worker.append(executed(index + 1, context, start + MS, start + MS + took))
        number += 2
    return core, worker


SPECIAL = {
    40: {"prefill_tokens": 512}, 50: {"preempted": ["q"]}, 60: {"evict": True}, 70: {"took": 61 * MS},
    80: {"took": 59 * MS},
}  # fmt: skip


@pytest.mark.parametrize("worker_first", [True, False])
@pytest.mark.parametrize("share", ["0", "0.2"])
def test_ordinary_steps_stay_here(start, socket_path, tmp_path, collector, monkeypatch, worker_first, share):
    monkeypatch.setenv(EXPORT, "traces")
    monkeypatch.setenv(SHARE, share)
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    core, worker = steps(400, SPECIAL)
    peers = [(Peer(socket_path, hello("aa")), core), (Peer(socket_path, hello("bb")), worker)]
    for peer, records in reversed(peers) if worker_first else peers:
        for first in range(0, len(records), 50):
            peer.send(*records[first : first + 50])
        peer.close()
        wait_until(lambda: status_of(socket_path).processes == 0)
    thinned = status_of(socket_path).spans_thinned
    sidecar.stop()
    file, exported = read_lines(out), collector.spans

    assert len(named(file, names.STEP)) == len(named(file, names.EXECUTE)) == 400
    went = {span[names.STEP_INDEX]: span.trace_id for span in named(exported, names.STEP)}
    # A step and its worker go together.
    assert {span.trace_id for span in named(exported, names.EXECUTE)} == set(went.values())
    assert thinned == 2 * (400 - len(went))
    if share == "0":
        assert set(went) == {40, 50, 60, 70}
    else:
        assert set(went) > {40, 50, 60, 70}
        assert 40 <= len(went) <= 130
    assert len(named(exported, names.EVICT)) == len(named(file, names.EVICT)) == 1


@pytest.mark.parametrize(("block", "there"), [(128, False), (256, True)])
def test_fine_fingerprints_stay_here(start, socket_path, tmp_path, collector, monkeypatch, block, there):
    monkeypatch.setenv(EXPORT, "traces")
    records = [replica(**{names.HASH_BLOCK_SIZE: block}), *whole_request()[1:]]
    file, exported = run(start, socket_path, tmp_path, collector, records)

    (written,), (sent,) = named(file, names.LOOKUP), named(exported, names.LOOKUP)
    assert names.FINGERPRINT_VALUES in written.attributes
    assert (names.FINGERPRINT_VALUES in sent.attributes) == there
    for key in (names.FINGERPRINT_COMMON, names.FINGERPRINT_PROMPT):
        assert sent[key] == written[key]


def test_settings_that_are_none_are_refused():
    assert read_settings({}).thin is False
    for name, text in ((EXPORT, "all"), (SHARE, "2"), (SHARE, "some"), (SHARE, "nan")):
        with pytest.raises(UsageError, match=name):
            read_settings({name: text})
