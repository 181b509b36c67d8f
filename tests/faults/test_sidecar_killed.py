"""The sidecar is killed, again and again: the engine goes on, another one takes over, and what is lost is numbered."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from sidecar.support import named, wait_until

from analyzers.analysis import analyze
from analyzers.readers import open_capture
from otel_cache.semconv import names
from otel_cache.sidecar.status import query_status

from .support import (
    await_exit,
    instance,
    kill_sidecar,
    lost_of,
    missing_of,
    numbers_of,
    read_capture,
    sidecars,
    workload,
)

KILLS = int(os.environ.get("OTEL_CACHE_TEST_KILLS", "100"))
STEPS_PER_KILL = 100
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def write_aside(path, number):
    path.with_name("aside").write_text(str(number))
    path.with_name("aside").rename(path)


def test_killed_at_random_a_hundred_times(engine, untraced):
    scenario = workload(75 * KILLS)
    expected = untraced(75 * KILLS)
    traced = engine("traced", scenario)
    # However quick the machine is, the engine is at work until the last sidecar is killed.
    write_aside(traced.folder / "slow", STEPS_PER_KILL)
    wait_until(lambda: traced.steps, 120)
    dice = random.Random(1)
    kills = 0
    while kills < KILLS and traced.process.poll() is None:
        time.sleep(dice.uniform(0, 0.7))
        kills += kill_sidecar(traced.socket)
        write_aside(traced.folder / "slow", (kills + 1) * STEPS_PER_KILL)
    (traced.folder / "slow").unlink()
    # vLLM has noticed nothing.
    assert traced.results() == expected
    await_exit(traced.socket)
    assert kills == KILLS

    spans = read_capture(traced.capture)
    (records,) = traced.records().values()
    # What found no room in the ring, because the lab runs without a model, has numbers too.
    dropped = max(records) + 1 - len(records)
    assert len({instance(span) for span in spans}) == 1
    missing, lost = missing_of(spans), lost_of(records, spans) + dropped
    # Every record is in a span or in a number of missing ones; of those that never have a span nobody can tell here.
    without = sum(kind in ("StepDone", "Finished", "Replica") for kind, _, _ in records.values())
    assert lost <= missing <= lost + without
    assert missing - dropped < len(records) / 5, "most of it is there"
    # Nothing is there twice. A sidecar that died after it wrote and before it said so is the exception: its last
    # numbers are given again, and what it had written counts as missing.
    twice = [number for number, count in Counter(numbers_of(spans)).items() if count > 1]
    assert len(twice) <= KILLS // 10
    steps = [span[names.RECORD_SEQUENCE] for span in named(spans, names.STEP)]
    assert len(set(steps)) == len(steps)
    assert set(range(max(numbers_of(spans)) + 1)) == set(numbers_of(spans))

    coverage = analyze(open_capture([traced.capture])).coverage
    assert coverage.missing_records == missing


def test_told_to_leave_it_loses_nothing(engine, untraced):
    expected = untraced(600)
    traced = engine("traced", workload(600))
    (traced.folder / "slow").touch()
    for turn in range(3):
        wait_until(lambda turn=turn: len(traced.steps) > 300 * (turn + 1), 120)
        for process in sidecars(traced.socket):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    (traced.folder / "slow").unlink()
    assert traced.results() == expected
    await_exit(traced.socket)

    spans = read_capture(traced.capture)
    (records,) = traced.records().values()
    assert missing_of(spans) == lost_of(records, spans) == 0
    numbers = numbers_of(spans)
    assert sorted(numbers) == list(range(len(numbers)))
    assert len({span.resource["service.instance.id"] for span in spans}) == 1
    analysis = analyze(open_capture([traced.capture]))
    assert analysis.coverage.missing_records == 0
    hits = {each.request_id: each.hit_tokens for each in analysis.lookups}
    assert hits == {each["request_id"]: each["hit_tokens"] for each in expected}
    assert not any(each.lost.get("unexplained") or each.lost.get("unknown") for each in analysis.lookups)


def test_a_sidecar_that_is_stopped_for_a_while_loses_nothing(engine, untraced):
    """It does not read: the engine's sender waits, and connects again, to the same one."""
    expected = untraced(600)
    traced = engine("traced", workload(600))
    (traced.folder / "slow").touch()
    wait_until(lambda: len(traced.steps) > 300, 120)
    (process,) = sidecars(traced.socket)
    process.suspend()
    wait_until(lambda: traced.process.poll() is not None or len(traced.steps) > 1200, 120)
    process.resume()
    (traced.folder / "slow").unlink()
    assert traced.results() == expected
    assert query_status(traced.socket).pid == process.pid
    await_exit(traced.socket)

    spans = read_capture(traced.capture)
    (records,) = traced.records().values()
    assert missing_of(spans) == lost_of(records, spans) == 0
