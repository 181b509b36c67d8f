"""Numbers that no vLLM writes, in every place of every record: the sidecar goes on, and counts what it cannot read."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_cache.records import LENGTH, Chunk
from otel_cache.semconv import names
from otel_cache.sidecar.build import MAX_PROCESSES

from .support import (
    Peer,
    executed,
    finished,
    hello,
    named,
    read_lines,
    repeated,
    replica,
    status_of,
    step,
    wait_until,
    whole_request,
)

NUMBERS = [-1, -(2**63), 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PLACES_AT_LEAST = 100


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where there are integers in a record as MessagePack has it: values of lists and maps, and keys of maps."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(key, int):
                yield (*path, ("key", key))
            yield from places(each, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def changed(value: Any, path: tuple[Any, ...], number: int) -> Any:
    """Return a record with another number at a place."""
    if not path:
        return number
    head, *rest = path
    if isinstance(head, tuple):
        return {number if key == head[1] else key: each for key, each in value.items()}
    if isinstance(value, dict):
        return {key: changed(each, tuple(rest), number) if key == head else each for key, each in value.items()}
    return [changed(each, tuple(rest), number) if index == head else each for index, each in enumerate(value)]


def batches() -> list[list[Any]]:
    """Return batches that together have every kind of record, each with all of its fields, as MessagePack has them."""
    whole = whole_request()
    whole[5] = step(
        5, 0, chunks=[Chunk("q", 8000, 9600, True)], admitted={"q": 0}, owner_groups={11: 0, 12: 3}, preempted=["z"]
    )
    other = [*whole, repeated(10, "p"), finished(11), executed(12, bytes(24))]
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(record)) for record in other]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("export", [False, True])
def test_one_number_at_a_time(start, socket_path, tmp_path, collector, capfd, export):
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint if export else None)
    records = batches()
    tried = 0
    for place in places(records):
        for number in NUMBERS:
            peer = Peer(socket_path, hello(f"{tried:08x}"))
            payload = msgspec.msgpack.encode(["batch", 0, changed(records, place, number)])
            peer.socket.sendall(LENGTH.pack(len(payload)) + payload)
            peer.close()
            tried += 1
            if tried % 50 == 0:
                status_of(socket_path)
    good = Peer(socket_path, hello("ffff"))
    good.send(replica(), *whole_request(1, "good"))
    wait_until(lambda: "good" in {span[names.REQUEST_ID] for span in named(read_lines(out), names.REQUEST)}, 60)
    status = status_of(socket_path)
    assert sidecar.stop() == 0

    assert tried >= PLACES_AT_LEAST * len(NUMBERS)
    assert status.malformed > 0
    # No more than one of each kind is complained of.
    assert capfd.readouterr().err.count("only counted") <= 2


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_what_is_not_known(start, socket_path, tmp_path, number):
    """A batch that has to be read record by record has the same bounds as one that is read whole."""
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    for process, dropped, record in [
        ("a1", 0, ["warp", number, 0]),
        ("a2", number, ["x"]),
        ("a3", number, ["warp", 0]),
    ]:
        peer = Peer(socket_path, hello(process))
        payload = msgspec.msgpack.encode(["batch", dropped, [record]])
        peer.socket.sendall(LENGTH.pack(len(payload)) + payload)
        peer.close()
    Peer(socket_path, hello("ffff")).send(*whole_request())
    wait_until(lambda: named(read_lines(out), names.REQUEST))
    status = status_of(socket_path)

    assert sidecar.stop() == 0
    assert (status.malformed, status.refused, status.missing) == (1, 2, 0)


def test_more_than_a_status_can_hold(start, socket_path):
    """Each of many processes says of itself as much as it may."""
    sidecar = start(Path("/dev/null"))
    payload = msgspec.msgpack.encode(["batch", 2**53, [["warp", 2**53]]])
    for number in range(2**11 + MAX_PROCESSES + 10):
        peer = Peer(socket_path, hello(f"{number:x}"))
        peer.socket.sendall(LENGTH.pack(len(payload)) + payload)
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.socket.recv(1)
        peer.close()
    status = status_of(socket_path)

    assert sidecar.stop() == 0
    assert (status.malformed, status.refused, status.missing) == (0, 0, 2**63 - 1)
