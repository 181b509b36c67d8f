"""Private and closed: who may connect, what one bad record costs, neighbours in version, and floods."""

import os
import random
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from otel_cache.errors import RecordError, UsageError
from otel_cache.records import (
    LENGTH,
    PROTOCOL_VERSION,
    Acknowledge,
    Batch,
    StatusRequest,
    decode_acknowledge,
    decode_payload,
    encode_frame,
    salvage_batch,
)
from otel_cache.semconv import names
from otel_cache.sidecar.launch import is_listening
from otel_cache.sidecar.receiver import MAX_BUFFERED, MAX_CONNECTIONS, Receiver
from otel_cache.sidecar.service import COMPANY_SECONDS
from otel_cache.sidecar.settings import read_settings
from otel_cache.sidecar.status import query_status

from .support import Peer, hello, lookup, named, read_lines, replica, status_of, step, wait_until, whole_request

UIDS = "OTEL_PYTHON_VLLM_CACHE_SOCKET_UIDS"
NOBODY = 65534


def frame(*records: object, dropped: int = 0) -> bytes:
    """Return a batch of records given as plain values."""
    payload = msgspec.msgpack.encode(["batch", dropped, list(records)])
    return LENGTH.pack(len(payload)) + payload


def plain(record: msgspec.Struct) -> list[object]:
    """Return a record as the values that it travels as."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(record))


def test_a_malformed_record_costs_only_itself(start, socket_path, tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    wrong_type, too_short, no_record = plain(lookup(2, "b")), plain(lookup(3, "c"))[:9], {"what": 1}
    wrong_type[4] = "late"
    peer.socket.sendall(
        frame(plain(replica()), plain(lookup(1, "a")), wrong_type, too_short, no_record, plain(lookup(5, "e")))
    )
    peer.send(lookup(6, "f"), step(7, admitted={"f": 0}))
    wait_until(lambda: status_of(socket_path).malformed == 3)
    assert sidecar.stop() == 0

    spans = read_lines(out)
    assert {span[names.REQUEST_ID] for span in named(spans, names.LOOKUP)} == {"a", "e", "f"}
    # Three numbers are missing, and that is what is said: what was malformed is lost.
    assert sum(span.attributes.get(names.MISSING_RECORDS, 0) for span in spans) == 3
    complaints = capfd.readouterr().err
    assert "3 records could not be read" in complaints
    assert complaints.count("a record could not be read") == 1


def test_garbage_inside_a_record_is_told_from_garbage_in_a_frame():
    records = [b"\x93\xa6lookup\x01\x02", msgspec.msgpack.encode(replica()), b"\x92\xa3odd\xc3"]
    batch = b"\x93\xa5batch\x00" + bytes([0x90 | len(records)]) + b"".join(records)
    salvaged, malformed = salvage_batch(batch)

    assert (salvaged.records, malformed) == ([replica()], 2)


DEPTH = 2_000
DEEP = {"lists": b"\x91" * DEPTH + b"\xc0", "maps": b"\x81\xa1k" * DEPTH + b"\xc0", "keys": b"\x81" * DEPTH + b"\xc0"}
"""Values nested deeper than anything reads them, in MessagePack."""


def packed(*fields: object) -> bytes:
    """Return an array of fields, of which bytes are in MessagePack already."""
    encoded = [each if isinstance(each, bytes) else msgspec.msgpack.encode(each) for each in fields]
    return bytes([0x90 | len(encoded)]) + b"".join(encoded)


def deep_payloads(deep: bytes) -> dict[str, bytes]:
    """Return a message for each place of the protocol that a value can be nested in."""
    known = plain(replica())
    return {
        "alone": deep,
        "hello": packed("hello", 1, deep, 1, 1, "0"),
        "more-of-a-hello": packed(*plain(hello()), deep),
        "status": packed("status", deep),
        "records": packed("batch", 0, deep),
        "record": packed("batch", 0, packed(deep)),
        "field": packed("batch", 0, packed(packed(*known[:-1], deep))),
        "more-of-a-record": packed("batch", 0, packed(packed(*known, deep))),
        "unknown-record": packed("batch", 0, packed(packed("warp", 1, deep))),
        "more-of-a-batch": packed("batch", 0, b"\x90", deep),
    }


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_what_is_nested_too_deeply_costs_only_its_connection(start, socket_path, tmp_path, deep):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    good = Peer(socket_path, hello("cc"))
    for payload in deep_payloads(deep).values():
        for greeting in (None, hello()):
            peer = Peer(socket_path, greeting)
            peer.socket.sendall(LENGTH.pack(len(payload)) + payload)
            assert peer.ended()
    good.send(*whole_request())
    status = status_of(socket_path)

    assert sidecar.stop() == 0
    assert len(named(read_lines(out), names.REQUEST)) == 1
    assert status.refused == 2 * len(deep_payloads(deep))


@pytest.mark.parametrize("decode", [decode_payload, salvage_batch, decode_acknowledge])
@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_what_is_nested_too_deeply_is_no_record(decode, deep):
    answer = packed("ack", 1, 0, b"\x80", False, deep)
    for payload in (answer, *deep_payloads(deep).values()):
        with pytest.raises(RecordError):
            decode(payload)


@pytest.mark.parametrize("place", ["open", "add", "progress", "close"])
def test_what_nobody_foresaw_costs_only_its_connection(socket_path, caplog, place):
    class Session:
        def add(self, batch):
            assert place != "add"

        def progress(self):
            assert place != "progress"
            return Acknowledge(0, 0, {})

        def close(self):
            assert place != "close"

    def open_session(hello):
        assert place != "open"
        return Session()

    receiver = Receiver(socket_path, open_session)
    peers = [Peer(socket_path, hello(name)) for name in ("aa", "bb")]
    for peer in peers:
        peer.send(replica())
        peer.socket.shutdown(socket.SHUT_WR)
    while receiver.poll(0.2) or receiver.connections:
        pass
    receiver.drain(0)

    assert caplog.text.count("Traceback") == 1
    for peer in peers:
        peer.socket.settimeout(5)
        while peer.socket.recv(1 << 10):
            pass
        peer.close()


@pytest.mark.parametrize("difference", [-1, 1])
def test_neighbours_in_version_work_together(start, socket_path, tmp_path, capfd, difference):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path)
    greeting, records = plain(hello(protocol=PROTOCOL_VERSION + difference)), [*map(plain, whole_request())]
    if difference > 0:
        # What a newer plugin may do: more fields on everything, and records of a kind that is not known yet.
        greeting += ["more", 7]
        records = [[*record, "more"] for record in records]
        records[3:3] = [["warp", 3, 0, "what", [1, 2]]]
        for number, record in enumerate(records[4:], 4):
            record[1] = number
    else:
        greeting = greeting[:6]
    payload = msgspec.msgpack.encode(greeting)
    peer.socket.sendall(LENGTH.pack(len(payload)) + payload + frame(*records))
    wait_until(lambda: named(read_lines(out), names.REQUEST))
    status = status_of(socket_path)
    sidecar.stop()

    spans = read_lines(out)
    assert len(named(spans, names.LOOKUP)) == 1
    assert not any(names.MISSING_RECORDS in span.attributes for span in spans)
    assert (status.malformed, status.missing, status.refused) == (0, 0, 0)
    assert "refused" not in capfd.readouterr().err


def test_a_sidecar_says_how_far_it_is(start, socket_path):
    start()
    peer = Peer(socket_path, hello())
    peer.send(replica(), lookup(1, "a"), lookup(2, "b"), step(3, admitted={"a": 0}))
    (length,) = LENGTH.unpack(peer.socket.recv(4))
    progress = decode_acknowledge(peer.socket.recv(length))

    # The lookup of b waits for its admission, the step for its end; that of a is written, as number 0.
    assert (progress.acknowledged, progress.held, progress.evidence, progress.last) == (4, 2, {0: 1}, False)


def test_a_sidecar_whose_backlog_is_full_is_there(socket_path):
    """Whoever finds that nobody more is let in now takes nobody's place."""
    Path(socket_path).parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_path)
        listening.listen(1)
        waiting = []
        with pytest.raises(BlockingIOError):
            for _ in range(100):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(socket_path)
        assert is_listening(socket_path)
        with pytest.raises(UsageError, match="another sidecar listens"):
            Receiver(socket_path, lambda *_: None)
        for each in waiting:
            each.close()


@pytest.mark.parametrize("sent", ["status", "half a frame"])
def test_only_records_are_worth_waiting_for(socket_path, sent):
    """Nobody has to wait for an answer because others ask, or send a frame byte by byte."""
    receiver = Receiver(socket_path, lambda *_: None, status=lambda: b"")
    peer = Peer(socket_path, hello())
    if sent == "status":
        peer.socket.sendall(encode_frame(StatusRequest()))
    else:
        peer.socket.sendall(LENGTH.pack(1 << 20) + b"half")
    while receiver.poll(0.2):
        pass
    assert receiver.connections == 1
    assert receiver.received == 0
    peer.close()
    receiver.drain(1)


def test_what_comes_little_by_little_is_read_together(start, socket_path):
    """A sidecar that woke for each batch would take the processor from the engine that often."""
    start()
    peer = Peer(socket_path, hello())
    began = time.monotonic()
    peer.send(replica())
    for number in range(1, 41):
        peer.send(lookup(number, f"r{number}"))
        time.sleep(0.002)
    answers, reached = 0, 0
    while reached < 41:
        (length,) = LENGTH.unpack(peer.socket.recv(4, socket.MSG_WAITALL))
        reached = decode_acknowledge(peer.socket.recv(length, socket.MSG_WAITALL)).acknowledged
        answers += 1

    assert answers <= (time.monotonic() - began) / COMPANY_SECONDS + 2


def test_an_earlier_connection_of_a_process_is_read_to_its_end_first(start, socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    first = Peer(socket_path, hello())
    records = [replica(), *(lookup(number, f"r{number}") for number in range(1, 400))]
    second = Peer(socket_path, hello())
    for record in records:
        first.send(record)
    second.send(lookup(400, "last"))
    wait_until(lambda: status_of(socket_path).processes == 1)
    sidecar.stop()

    assert len(named(read_lines(out), names.LOOKUP)) == 400


def test_only_its_own_user_by_default(start, socket_path):
    start()
    assert stat.S_IMODE(Path(socket_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(("uids", "fate"), [((1234,), "refused"), ((1234, os.getuid()), "taken")])
def test_users_that_are_named_may_connect(socket_path, monkeypatch, caplog, uids, fate):
    """The kernel says who connects. The sidecar takes itself for another user: root alone could become one."""
    monkeypatch.setattr("otel_cache.sidecar.receiver.own_uid", lambda: os.getuid() + 1)
    receiver = Receiver(socket_path, lambda hello: SimpleNamespace(), uids=uids)
    assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(Path(socket_path).stat().st_mode) == 0o666
    peer = Peer(socket_path)
    receiver.poll(1)
    assert (receiver.connections, receiver.rejected) == ((0, 1) if fate == "refused" else (1, 0))
    assert (f"a process of user {os.getuid()} connected" in caplog.text) == (fate == "refused")
    peer.socket.close()
    receiver.drain(0)


def test_another_user_does_not_reach_the_socket_by_default(start, socket_path):
    """Neither the folder nor the socket lets others in."""
    start()
    assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(socket_path).stat().st_mode) == 0o600


def test_a_folder_that_was_there_keeps_its_mode(start, socket_path, monkeypatch, capfd):
    Path(socket_path).parent.mkdir(mode=0o700)
    monkeypatch.setenv(UIDS, str(NOBODY))
    start()

    assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) == 0o700
    assert "chmod o+x" in capfd.readouterr().err


def test_uids_that_are_none_are_refused():
    assert read_settings({UIDS: " 0, 1000 "}).uids == {0, 1000}
    for text in ("root", "1000;1001", "-1", "१"):
        with pytest.raises(UsageError, match="SOCKET_UIDS"):
            read_settings({UIDS: text})


def test_a_connection_that_never_says_who_it_is_is_ended(socket_path, monkeypatch):
    monkeypatch.setattr("otel_cache.sidecar.receiver.HELLO_SECONDS", 0.0)
    receiver = Receiver(socket_path, lambda hello: SimpleNamespace())
    peer = Peer(socket_path)
    for _ in range(30):
        receiver.poll(0.1)
        receiver._next_sweep = 0.0
    assert receiver.connections == 0
    assert peer.ended()
    receiver.stop_listening()


def test_so_many_connections_and_no_more(start, socket_path):
    start()
    peers = [Peer(socket_path) for _ in range(MAX_CONNECTIONS)]
    assert Peer(socket_path).ended()
    peers.pop().close()
    wait_until(lambda: has_refused(socket_path))


def test_who_finds_no_descriptor_left_waits_without_keeping_the_sidecar_busy(start, socket_path, tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    process = psutil.Process(sidecar.pid)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 2,) * 2)
    peers = [Peer(socket_path, hello(f"{number:x}")) for number in range(8)]
    for number, peer in enumerate(peers):
        peer.send(*whole_request(request=str(number)))
    wait_until(lambda: len(named(read_lines(out), names.REQUEST)) >= 2)
    before = sum(process.cpu_times()[:2])
    time.sleep(1.5)
    busy = sum(process.cpu_times()[:2]) - before
    served = len(named(read_lines(out), names.REQUEST))
    for peer in peers:
        peer.close()
    wait_until(lambda: len(named(read_lines(out), names.REQUEST)) == 8)

    assert sidecar.stop() == 0
    assert served < 8
    assert busy < 0.5
    assert capfd.readouterr().err.count("cannot take a connection: Too many open files") == 1


def has_refused(path):
    try:
        return query_status(path).refused >= 1
    except UsageError:  # it has not seen yet that a peer has left
        return False


FLOOD = 1 << 30
PEERS = 64
ALLOWED = MAX_BUFFERED + (128 << 20)
"""What the sidecar may grow by: the unfinished frames, one that is dealt with, and what is open of the records."""


def test_a_flood_does_not_exhaust_memory(start, socket_path, tmp_path):
    sidecar = start(Path("/dev/null"))
    process = psutil.Process(sidecar.pid)
    before, highest = process.memory_info().rss, 0
    done = threading.Event()
    sent = [0] * PEERS

    def flood(index: int) -> None:
        dice = random.Random(index)
        valid = encode_frame(Batch(0, [each for n in range(50) for each in whole_request(10 * n, f"{index}-{n}")]))
        huge_half = struct.pack(">I", 15 << 20) + bytes(12 << 20)
        while sent[index] < FLOOD // PEERS:
            try:
                peer = Peer(socket_path, hello(f"{index:x}"))
                peer.socket.settimeout(20)
                with peer.socket:
                    while sent[index] < FLOOD // PEERS:
                        kind = dice.choice(("valid", "valid", "garbage", "half", "long"))
                        data = {
                            "valid": valid * 8,
                            "garbage": frame(*[["lookup", 1, b"x" * 1000]] * 500),
                            "half": huge_half,
                            "long": struct.pack(">I", 1 << 31) + bytes(1 << 20),
                        }[kind]
                        peer.socket.sendall(data)
                        sent[index] += len(data)
            except OSError:
                sent[index] += 1 << 20  # it was refused in the middle of that

    threads = [threading.Thread(target=flood, args=(index,)) for index in range(PEERS)]

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.01):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    for thread in [watcher, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    status = wait_until(lambda: query_status(socket_path, 30), 60)
    # Whoever behaves is still served.
    peer = Peer(socket_path, hello("dd"))
    peer.send(*whole_request(request="good"))
    wait_until(lambda: query_status(socket_path, 30).spans_written > status.spans_written, 60)

    assert sum(sent) >= FLOOD
    assert status.refused
    assert status.malformed
    assert highest - before < ALLOWED, f"{(highest - before) >> 20} MiB more"


def test_the_status_of_a_sidecar(start, socket_path, tmp_path, collector):
    out = tmp_path / "out.jsonl"
    sidecar = start(out, collector.endpoint)
    traced = lookup(1, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with socket.socket(socket.AF_UNIX):
        peer = Peer(socket_path, hello())
        peer.send(replica(), traced, step(2, admitted={"q": 0}), step(3, 1, finished=["q"]))
    peer.send(*whole_request(10, "p"))
    wait_until(lambda: status_of(socket_path).requests == 2)
    status = status_of(socket_path)
    text = subprocess.run(
        [str(Path(sys.executable).with_name("otel-cache")), "sidecar", "--socket", socket_path, "--status"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    spans = len(read_lines(out))
    sidecar.stop()
    gone = subprocess.run(
        [str(Path(sys.executable).with_name("otel-cache")), "sidecar", "--socket", socket_path, "--status"],
        capture_output=True, text=True,
    )  # fmt: skip

    assert (status.pid, status.protocol, status.processes) == (sidecar.pid, PROTOCOL_VERSION, 1)
    assert (status.requests, status.requests_traced) == (2, 1)
    assert status.spans_built == status.spans_written == spans
    assert (status.missing, status.endpoint, status.file) == (6, collector.endpoint, str(out))
    assert f"{spans} spans in {out}" in text
    assert "2, 1 of them with a trace context" in text
    assert f"to {collector.endpoint}" in text
    assert gone.returncode == 1
    assert "no sidecar listens" in gone.stderr


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_an_answer_that_is_nested_too_deeply_is_not_a_sidecar_s(tmp_path, deep):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            peer, _ = listener.accept()
            with peer:
                payload = b"\x82\xa4type\xa6status\xa4more" + deep
                peer.sendall(LENGTH.pack(len(payload)) + payload)
                peer.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UsageError, match="does not answer like a sidecar"):
            query_status(path, 10)
        thread.join()


def test_what_is_no_sidecar_does_not_answer_like_one(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        with pytest.raises(UsageError, match="does not answer"):
            query_status(str(path), 0.2)
    with pytest.raises(UsageError, match="no sidecar listens"):
        query_status(str(path), 0.2)
