"""The way out of a process: order, holes, reconnection and forks, against a real Unix socket."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_cache.config import SOCKET, read_config
from otel_cache.pipeline.gate import Gate
from otel_cache.pipeline.ring import Ring
from otel_cache.pipeline.sender import PATIENCE, Pipeline, Sender
from otel_cache.records import Batch, Hello, Record, Replica, Reset, decode_payload


class Listener:
    """A socket that keeps what it is sent."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.messages: list[Hello | Batch] = []
        self.connections: list[socket.socket] = []
        self.ended = 0
        self.open()

    def open(self) -> None:
        """Listen."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        threading.Thread(target=self._serve, args=(self.socket,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and cut every connection."""
        Path(self.path).unlink()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self.connections.clear()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            try:
                while len(head := file.read(4)) == 4:
                    self.messages.append(decode_payload(file.read(struct.unpack(">I", head)[0])))
            except OSError:
                return
            finally:
                self.ended += 1

    @property
    def records(self) -> list[Record]:
        """All records so far, in order."""
        return [record for message in self.messages if isinstance(message, Batch) for record in message.records]


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener that the configuration names."""
    found = Listener(tmp_path / "s")
    monkeypatch.setenv(SOCKET, found.path)
    yield found
    found.close()


def numbered(number: int, count: int = 1) -> list[Record]:
    """Pack one event into `count` records."""
    return [Reset(number + offset, 0, 1) for offset in range(count)]


def settings(number: int) -> list[Record]:
    """Pack a replica's settings."""
    return [Replica(number, 0, 1, {"vllm.replica.id": "r"})]


def broken(number: int) -> list[Record]:
    """Fail."""
    raise RuntimeError("broken on purpose")


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for `condition`, at most `seconds`."""
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("the condition never came true")


def test_order_and_numbers(listener: Listener) -> None:
    """Records arrive in order, numbered from 0; an event may make none, one or several."""
    pipeline = Pipeline(read_config)
    for count in (1, 0, 3, 1):
        pipeline.push((numbered, count))
    pipeline.close()
    until(lambda: len(listener.records) == 5)
    assert [record.sequence for record in listener.records] == [0, 1, 2, 3, 4]
    hello = listener.messages[0]
    assert isinstance(hello, Hello)
    assert hello.pid == os.getpid()


def test_what_does_not_fit_leaves_a_hole(listener: Listener) -> None:
    """A full ring drops, never blocks; the numbers and the count say how many."""
    ring = Ring(capacity=3)
    sender = Sender(read_config(), ring, Gate(), lambda: None)
    for _ in range(10):
        ring.push((numbered,))
    sender.flush(5)
    ring.push((numbered,))
    sender.flush(5)
    sender.close(5)
    until(lambda: len(listener.records) == 4)
    assert [record.sequence for record in listener.records] == [0, 1, 2, 10]
    assert [message.dropped for message in listener.messages if isinstance(message, Batch)] == [7, 7]


def test_what_cannot_be_packed_leaves_a_hole(listener: Listener) -> None:
    """A record that cannot be made is a lost record, not a silent one."""
    pipeline = Pipeline(read_config)
    for pack in (numbered, broken, numbered):
        pipeline.push((pack,))
    pipeline.close()
    until(lambda: len(listener.records) == 2)
    assert [record.sequence for record in listener.records] == [0, 2]


def test_a_new_sidecar_is_told_the_settings(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the sidecar was away what was captured meanwhile arrives, and the replica's settings before it."""
    monkeypatch.setattr("otel_cache.pipeline.sender.RECONNECT_SECONDS", 0.05)
    pipeline = Pipeline(read_config)
    pipeline.push((settings,))
    pipeline.flush()
    until(lambda: len(listener.records) == 1)
    listener.close()
    for _ in range(3):  # the first that is sent into a closed socket may be lost without a word
        pipeline.push((numbered,))
        pipeline.flush(0.2)
    listener.open()
    pipeline.push((numbered,))
    pipeline.close()
    until(lambda: len(listener.records) >= 4)
    again = listener.records[1:]
    assert isinstance(again[0], Replica)
    assert [record.sequence for record in again][-1] == 4
    assert [type(message) for message in listener.messages].count(Hello) == 2


def test_a_closed_pipeline_begins_anew(listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a close the next event opens a connection as the environment then says, numbered from 0."""
    pipeline = Pipeline(read_config)
    pipeline.push((numbered,))
    pipeline.close()
    other = Listener(tmp_path / "t")
    monkeypatch.setenv(SOCKET, other.path)
    pipeline.push((numbered,))
    pipeline.close()
    until(lambda: bool(other.records))
    assert [record.sequence for record in other.records] == [0]
    other.close()


def test_a_forked_child_has_a_way_of_its_own(listener: Listener) -> None:
    """The child inherits neither thread nor connection; its records come from another process life."""
    pipeline = Pipeline(read_config)
    pipeline.push((numbered,))
    pipeline.flush()
    child = os.fork()
    if child == 0:
        pipeline.push((numbered,))
        pipeline.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pipeline.push((numbered,))
    pipeline.close()
    until(lambda: len(listener.records) == 3)
    hellos: list[Any] = [message for message in listener.messages if isinstance(message, Hello)]
    assert len({hello.process for hello in hellos}) == 2
    assert sorted(record.sequence for record in listener.records) == [0, 0, 1]


def test_a_forked_child_keeps_no_connection_open(listener: Listener) -> None:
    """The parent's end is seen while a child of its lives on."""
    pipeline = Pipeline(read_config)
    pipeline.push((numbered,))
    pipeline.flush()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        pipeline.close()
        until(lambda: listener.ended == 1, 5)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing raises and nothing hangs where no sidecar is there."""
    monkeypatch.setenv(SOCKET, str(tmp_path / "none"))
    pipeline = Pipeline(read_config)
    pipeline.push((numbered,))
    pipeline.close(0.3)


def test_the_sender_waits_for_the_scheduler(listener: Listener) -> None:
    """While a scheduler works records wait, but not for longer than a moment: a flush interval is all that is lost."""
    pipeline = Pipeline(read_config)
    pipeline.push((numbered,))
    pipeline.flush()
    pipeline.gate.busy = True
    start = time.monotonic()
    pipeline.push((numbered,))
    until(lambda: len(listener.records) == 2)
    assert PATIENCE / 2 < time.monotonic() - start < 1
    pipeline.close()


@pytest.mark.parametrize("pack_seconds", [0.0, 0.000_02, 0.000_1])
def test_a_scheduler_that_is_never_idle_leaves_nothing_behind(listener: Listener, pack_seconds: float) -> None:
    """Records go out while more are captured than there are idle moments for."""
    pipeline = Pipeline(read_config)
    over = threading.Event()

    def pack(number: int, captured: int) -> list[Record]:
        spin(pack_seconds)
        return [Reset(number, 0, captured)]

    def schedule() -> None:
        while not over.is_set():
            pipeline.gate.busy = True
            spin(0.002)
            for _ in range(8):
                pipeline.push((pack, time.time_ns()))
            pipeline.gate.busy = False
            pipeline.gate.scheduled()

    thread = threading.Thread(target=schedule)
    thread.start()
    try:
        ages = []
        for _ in range(8):
            time.sleep(0.25)
            times = [record.time for record in listener.records if isinstance(record, Reset)]
            ages.append((time.time_ns() - max(times, default=0)) / 1e9)
    finally:
        over.set()
        thread.join()
        pipeline.close()
    assert max(ages) < 1
    assert [message.dropped for message in listener.messages if isinstance(message, Batch)][-1] == 0


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_sidecar_that_reads_nothing_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """A process ends in time, also where its thread is in the middle of a send."""
    monkeypatch.setenv(SOCKET, str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        pipeline = Pipeline(read_config)
        for _ in range(2_000):
            pipeline.push((numbered, 50))
        time.sleep(0.3)
        start = time.monotonic()
        getattr(pipeline, end)(0.5)
        assert time.monotonic() - start < 1.5


def spin(seconds: float) -> None:
    """Work for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
