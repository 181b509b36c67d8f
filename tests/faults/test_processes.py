"""vLLM's processes: forked, spawned, two at once, alike by their seeds, and killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sidecar.support import named, wait_until

from analyzers.analysis import analyze
from analyzers.readers import open_capture
from otel_cache.semconv import names

from .support import await_exit, instance, lost_of, missing_of, numbers_of, read_capture, sidecars, workload

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
SEND = """
import os, random, sys
import numpy
sys.path.insert(0, {tests!r})
random.seed(0)
numpy.random.seed(0)
from otel_cache.sidecar.build import Processes
from otel_cache.records import Batch
from sidecar.support import hello, whole_request
spans = Processes().get(hello()).add(Batch(0, whole_request()))
if os.fork() == 0:
    spans += Processes().get(hello("cd")).add(Batch(0, whole_request()))
    sys.stdout.write("".join(f"{{s.context.trace_id.hex()}} {{s.context.span_id.hex()}}\\n" for s in spans[-9:]))
    sys.stdout.flush()
    os._exit(0)
os.wait()
spans += Processes().get(hello("ef")).add(Batch(0, whole_request()))
print("".join(f"{{s.context.trace_id.hex()}} {{s.context.span_id.hex()}}\\n" for s in spans))
"""


def test_forked_and_spawned(engine, untraced):
    """Each process has a life of its own in the one sidecar, and each analyses alike."""
    scenario = workload(150)
    expected = untraced(150)
    traced = engine("traced", scenario, "--family")
    for name in ("results.json", "again.json", "forked.json", "spawned.json"):
        assert traced.results(name) == expected
    await_exit(traced.socket)

    spans = read_capture(traced.capture)
    # The parent has two schedulers one after the other; the children have one each.
    assert len({instance(span) for span in spans}) == 4
    assert len({instance(span).partition("-")[0] for span in spans}) == 3
    for life in {instance(span) for span in spans}:
        own = [span for span in spans if instance(span) == life]
        assert sorted(numbers_of(own)) == list(range(len(numbers_of(own))))
        assert [span[names.LOOKUP_HIT_TOKENS] for span in _first_lookups(own)] == [
            each["hit_tokens"] for each in expected
        ]
    assert missing_of(spans) == 0
    assert len({span.span_id for span in spans}) == len(spans)


def test_two_engine_cores_share_a_sidecar(engine, untraced):
    """Both start one at the same time, both are seeded as every rank is: one sidecar, and no id twice."""
    scenario = workload(150)
    expected = untraced(150)
    both = [engine(name, scenario, "--seeded") for name in ("left", "right")]
    for each in both:
        (each.folder / "slow").touch()
    wait_until(lambda: all(len(each.steps) > 100 for each in both), 200)
    assert len(sidecars(both[0].socket)) == 1
    for each in both:
        (each.folder / "slow").unlink()
    for each in both:
        assert each.results() == expected
    await_exit(both[0].socket)

    spans = read_capture(both[0].capture)
    assert len({span.span_id for span in spans}) == len(spans)
    by_life: dict[str, set[str]] = {}
    for span in spans:
        by_life.setdefault(instance(span), set()).add(span.trace_id)
    left, right = by_life.values()
    assert not left & right
    assert analyze(open_capture([both[0].capture])).coverage.missing_records == 0
    for life in by_life:
        own = [span for span in spans if instance(span) == life]
        hits = [span[names.LOOKUP_HIT_TOKENS] for span in _first_lookups(own)]
        assert hits == [each["hit_tokens"] for each in expected]


def test_ids_are_unique_whatever_is_seeded():
    """Two processes that seeded alike, and a fork of each: no trace or span id twice but those of one trace."""
    script = SEND.format(tests=str(Path(__file__).parents[1]))
    lines = [
        line.split()
        for _ in range(2)
        for line in subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        .stdout.splitlines()
        if line
    ]  # fmt: skip
    assert len(lines) == 2 * 3 * 9
    assert len({span for _, span in lines}) == len(lines)
    per_request = len({trace for trace, _ in lines[:9]})
    assert len({trace for trace, _ in lines}) == 2 * 3 * per_request


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_vllm_dies(engine, number):
    """The sidecar that it started lives on; what is older than a flush interval is readable."""
    traced = engine("traced", workload(3000))
    (traced.folder / "slow").touch()
    wait_until(lambda: len(traced.steps) > 400, 120)
    (sidecar,) = sidecars(traced.socket)
    traced.process.send_signal(number)
    traced.process.wait()
    assert sidecar.is_running()
    await_exit(traced.socket)

    spans = read_capture(traced.capture)
    steps = traced.steps
    died = steps[-1][1]
    (records,) = traced.records().values()
    # All that was sent is there: spans of every record but those that the process may have died with in its hands.
    assert missing_of(spans) == 0
    last_frame = max(records) - 512
    assert lost_of({number: each for number, each in records.items() if number < last_frame}, spans) <= 0
    # And what was not sent is no older than the interval of 20 ms, on a machine with time for its threads.
    seen = max(span.end for span in spans)
    assert died - seen < 250_000_000
    assert len(named(spans, names.STEP)) > 300
    analysis = analyze(open_capture([traced.capture]))
    assert analysis.coverage.missing_records == 0
    assert time.time_ns() > died


def _first_lookups(spans):
    """Return the admitted lookup of each request, in order."""
    found = {}
    for span in sorted(named(spans, names.LOOKUP), key=lambda each: each[names.RECORD_SEQUENCE]):
        if span[names.LOOKUP_ADMITTED]:
            found.setdefault(span[names.REQUEST_ID], span)
    order = sorted(found, key=lambda name: int(name[1:]))
    return [found[name] for name in order]
