"""The backlog tells of each span once, at every moment: it was sent, it was lost, or it waits."""

import threading

import pytest

from otel_cache.sidecar.backlog import Backlog
from otel_cache.sidecar.spool import Encoded, Spool

BATCHES, SPANS = 2_000, 3


@pytest.mark.parametrize("spooled", [False, True])
def test_every_span_is_told_of_once_while_batches_go(tmp_path, spooled):
    backlog = Backlog(Spool(str(tmp_path), "somewhere", 1 << 30) if spooled else None)
    for _ in range(BATCHES):
        backlog.put(Encoded(b"spans", SPANS))
    if spooled:
        backlog.keep()

    def send() -> None:
        for number in range(BATCHES):
            backlog.peek()
            if number % 3:
                backlog.sent(rejected=number % 2)
            else:
                backlog.refused()

    sender = threading.Thread(target=send)
    sums = {sum(backlog.standing[:3])}
    sender.start()
    while sender.is_alive():
        sums.add(sum(backlog.standing[:3]))
    sender.join()

    refused = len(range(0, BATCHES, 3))
    rejected = sum(number % 2 for number in range(BATCHES) if number % 3)
    lost = refused * SPANS + rejected
    assert sums == {BATCHES * SPANS}
    assert backlog.standing == (BATCHES * SPANS - lost, lost, 0, 0, 0)
    backlog.close()


def test_what_arrives_after_the_end_is_not_counted_twice():
    """The time for it was over: the batch under way counted as lost."""
    backlog = Backlog(None)
    backlog.put(Encoded(b"spans", SPANS))
    backlog.peek()
    backlog.close()
    backlog.sent()

    assert backlog.standing == (0, SPANS, 0, 0, 0)
