"""The collector is away under load and comes back: every span arrives, in order, once."""

import os
import time

import pytest
from sidecar.conftest import socket_path, start
from sidecar.support import Peer, hello, read_lines, status_of, wait_until, whole_request

__all__ = ["socket_path", "start"]

SECONDS = float(os.environ.get("OTEL_CACHE_TEST_SECONDS_AWAY", "20"))
PAUSE_SECONDS = 0.02


@pytest.mark.timeout(300)
def test_away_and_back(start, socket_path, folder, collector, capfd):
    out = folder / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    peer = Peer(socket_path, hello())
    peer.socket.setblocking(True)
    number = 0

    def load(seconds: float) -> None:
        """Send some hundred spans a second."""
        nonlocal number
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            peer.send(*whole_request(10 * number, f"r{number}"))
            number += 1
            time.sleep(PAUSE_SECONDS)

    load(2)
    wait_until(lambda: collector.requests)
    collector.stop()
    load(SECONDS)
    away = status_of(socket_path)
    before = len(collector.spans)
    collector.start()
    load(2)
    wait_until(lambda: status_of(socket_path).spans_waiting == 0, 60)
    status = status_of(socket_path)
    sidecar.stop()

    written, arrived = read_lines(out), collector.spans
    assert [span.span_id for span in arrived] == [span.span_id for span in written]
    assert arrived == written
    assert away.spans_spooled > 0
    assert "UNAVAILABLE" in away.export_error
    said = capfd.readouterr().err
    assert said.count("the collector takes no spans (UNAVAILABLE") == said.count("the collector answers again") == 1
    assert f"kept in {folder}" in said
    assert len(arrived) - before > SECONDS * 100
    assert (status.spans_lost, status.spans_waiting) == (0, 0)
    assert not list(folder.rglob("*.spans"))


@pytest.mark.timeout(300)
def test_away_over_a_restart_of_the_sidecar(start, socket_path, folder, collector):
    """What the first sidecar could not send the second does, before what it takes in itself."""
    collector.stop()
    out = folder / "out.jsonl"
    first = start(out, collector.endpoint)
    peer = Peer(socket_path, hello("aa"))
    for number in range(200):
        peer.send(*whole_request(10 * number, f"r{number}"))
    wait_until(lambda: status_of(socket_path).spans_spooled, 30)
    first.stop()
    one = read_lines(out)
    second = start(folder / "next.jsonl", collector.endpoint)
    Peer(socket_path, hello("bb")).send(*whole_request())
    wait_until(lambda: status_of(socket_path).export_failed, 30)
    collector.start()
    wait_until(lambda: status_of(socket_path).spans_waiting == 0, 60)
    second.stop()

    assert [span.span_id for span in collector.spans] == [
        span.span_id for span in one + read_lines(folder / "next.jsonl")
    ]
