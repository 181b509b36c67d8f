"""The disk is full: what finds no room is dropped and counted, and all else goes on. On a real file system of 1 MiB."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sidecar.conftest import socket_path, start
from sidecar.support import SPANS, Peer, hello, read_requests, status_of, wait_until, whole_request

from otel_cache.semconv import names
from otel_cache.sidecar.__main__ import INCOMPLETE
from otel_cache.sidecar.status import query_status
from otel_cache.sidecar.tracing import EVIDENCE

from .support import read_capture

__all__ = ["socket_path", "start"]


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system with room for 1 MiB."""
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def is_built(path: str, requests: int) -> bool:
    return query_status(path).spans_built == requests * SPANS


def load(peer: Peer, first: int, count: int) -> None:
    for number in range(first, first + count):
        peer.send(*whole_request(10 * number, f"r{number}"))


def test_the_evidence(start, socket_path, small_disk, capfd):
    """Room comes back: the file goes on after a line that was cut short, and the hole is in the numbers."""
    out, ballast = small_disk / "out.jsonl", small_disk / "ballast"
    ballast.write_bytes(bytes(600 << 10))
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    load(peer, 0, 300)
    full = wait_until(lambda: (status := status_of(socket_path)).spans_built == 300 * SPANS and status)
    ballast.unlink()
    load(peer, 300, 20)
    wait_until(lambda: status_of(socket_path).spans_built == 320 * SPANS)
    code = sidecar.stop()

    assert code == INCOMPLETE
    assert full.spans_unwritten > 0
    spans = read_capture(out)
    complaints = capfd.readouterr().err
    assert len(spans) == full.spans_written + 20 * SPANS
    assert f"{full.spans_unwritten} spans could not be written" in complaints
    assert complaints.count("No space left on device") == 1
    numbers = {span[names.EVIDENCE_NUMBER] for span in spans if names.EVIDENCE_NUMBER in span.attributes}
    of_a_request = sum(span.name in EVIDENCE for span in spans[-SPANS:])
    assert max(numbers) + 1 == 320 * of_a_request
    assert len(numbers) == of_a_request * (full.spans_written // SPANS + 20)


def test_the_spool(start, socket_path, folder, small_disk, collector, monkeypatch, capfd):
    """The collector is away and the disk is full: the newest find no room, the records still become evidence."""
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_SPOOL", str(small_disk))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    out = folder / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    peer = Peer(socket_path, hello())
    load(peer, 0, 50)
    wait_until(lambda: status_of(socket_path).spans_spooled)
    load(peer, 50, 600)
    wait_until(lambda: status_of(socket_path).spans_built == 650 * SPANS, 30)
    collector.start()
    wait_until(lambda: status_of(socket_path).spans_waiting == 0, 30)
    load(peer, 650, 10)
    wait_until(lambda: status_of(socket_path).spans_built == 660 * SPANS)
    lost = status_of(socket_path).spans_lost
    sidecar.stop()

    written, arrived = read_capture(out), read_requests(collector.requests)
    assert lost > 0
    assert len(written) == 660 * SPANS
    assert len({span.span_id for span in arrived}) == len(arrived) == len(written) - lost
    told = sum(span.attributes.get(names.EXPORT_DROPPED, 0) for span in arrived)
    assert told == lost
    assert capfd.readouterr().err.count("cannot write to the spool") == 1
    assert not list(small_disk.rglob("*.spans"))


def test_a_spool_that_is_full_by_its_own_limit(start, socket_path, folder, collector, monkeypatch):
    """The oldest go first, and what is there at the end are the newest, in order."""
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_SPOOL_BYTES", "1M")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    out = folder / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    peer = Peer(socket_path, hello())
    sent = 0
    # How soon spans go from memory to the spool depends on how long a try to export takes.
    while not status_of(socket_path).spans_lost:
        assert sent < 50_000
        load(peer, sent, 500)
        sent += 500
        wait_until(partial(is_built, socket_path, sent), 30)
    sizes = [path.stat().st_size for path in folder.rglob("*.spans")]
    assert sum(sizes) <= 1 << 20
    collector.start()
    wait_until(lambda: status_of(socket_path).spans_waiting == 0, 30)
    lost = status_of(socket_path).spans_lost
    sidecar.stop()

    written, arrived = read_capture(out), read_requests(collector.requests)
    assert len(arrived) == len(written) - lost < len(written)
    order = {span.span_id: place for place, span in enumerate(written)}
    places = [order[span.span_id] for span in arrived]
    assert places == sorted(places)
    assert places[-1] == len(written) - 1
