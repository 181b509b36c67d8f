"""The sidecar as a process: what arrives by its socket is in its file."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from otel_cache.errors import UsageError
from otel_cache.records import MAX_FRAME_BYTES, Batch, encode_frame
from otel_cache.semconv import names
from otel_cache.sidecar.__main__ import INCOMPLETE
from otel_cache.sidecar.launch import start_child
from otel_cache.sidecar.otlp_json import PATIENCE_SECONDS
from otel_cache.sidecar.parquet import PART_SUFFIX, convert

from .support import SPANS, Peer, hello, lookup, named, read_lines, replica, step, wait_until, whole_request


def test_a_request_is_in_the_file_before_the_sidecar_ends(start, socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    wait_until(lambda: out.stat().st_size)
    os.kill(sidecar.pid, 9)

    spans = read_lines(out)
    assert {span.name for span in spans} == {
        names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.EVICT, names.STEP,
    }  # fmt: skip
    assert spans[0].resource["service.instance.id"] == "ab12-0"
    assert spans[0].resource[names.GROUPS_BLOCK_SIZE] == [1600] * 4
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) == 0o700


def test_a_stop_takes_in_what_was_sent(start, socket_path, tmp_path, capfd):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    peer.send(replica())
    for number in range(500):
        peer.send(lookup(number + 1, f"r{number}"))

    assert sidecar.stop() == 0
    assert len(named(read_lines(out), names.LOOKUP)) == 500
    assert not Path(socket_path).exists()
    assert f"2000 spans written to {out}" in capfd.readouterr().err


def test_two_processes_at_once(start, socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peers = [Peer(socket_path, hello(process)) for process in ("aa", "bb")]
    for peer in peers:
        peer.send(replica(), lookup(1))
    for peer in peers:
        peer.send(step(2, admitted={"q": 0}))
        peer.close()
    sidecar.stop()

    lookups = named(read_lines(out), names.LOOKUP)
    assert {span.resource["service.instance.id"] for span in lookups} == {"aa-0", "bb-0"}
    assert all(span[names.LOOKUP_ADMITTED] and span[names.EVIDENCE_NUMBER] == 0 for span in lookups)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="garbage"),
        pytest.param(struct.pack(">I", MAX_FRAME_BYTES + 1), id="too-long"),
        pytest.param(struct.pack(">I", 3) + b"\xc1\xc1\xc1", id="no-msgpack"),
        pytest.param(struct.pack(">I", 0), id="empty"),
        pytest.param(encode_frame(hello(protocol=99)), id="protocol"),
        pytest.param(encode_frame(Batch(0, [lookup(0)])), id="no-hello"),
        pytest.param(encode_frame(hello()) * 2, id="two-hellos"),
    ],
)
def test_what_is_no_record_ends_only_its_connection(start, socket_path, tmp_path, capfd, sent):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    good = Peer(socket_path, hello("cc"))
    for _ in range(2):
        bad = Peer(socket_path)
        bad.socket.sendall(sent)
        assert bad.ended()
    good.send(*whole_request())

    assert sidecar.stop() == 0
    assert len(named(read_lines(out), names.REQUEST)) == 1
    complaints = capfd.readouterr().err
    assert complaints.count("closed a connection") == 1
    assert "2 connections were refused" in complaints


def test_a_peer_that_dies_within_a_frame_loses_only_that(start, socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    peer.send(replica(), lookup(1))
    peer.socket.sendall(encode_frame(Batch(0, [lookup(2, "p")]))[:-3])
    peer.close()

    assert wait_until(lambda: named(read_lines(out), names.LOOKUP))[0][names.REQUEST_ID] == "q"
    assert sidecar.stop() == 0
    assert len(named(read_lines(out), names.LOOKUP)) == 1


def test_frames_may_arrive_byte_by_byte(start, socket_path, tmp_path):
    out = tmp_path / "out.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path)
    for byte in encode_frame(hello()) + encode_frame(Batch(0, whole_request())):
        peer.socket.sendall(bytes([byte]))
    sidecar.stop()

    assert len(named(read_lines(out), names.REQUEST)) == 1


def test_parquet(start, socket_path, tmp_path):
    out = tmp_path / "out.parquet"
    part = Path(f"{out}{PART_SUFFIX}")
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    wait_until(lambda: part.stat().st_size)
    lines = read_lines(part)
    sidecar.stop()

    frame = pl.read_parquet(out)
    assert frame.columns == [
        "trace_id", "span_id", "parent_span_id", "name", "kind", "start", "end", "resource", "attributes",
        "trace_state", "links", "scope",
    ]  # fmt: skip
    assert frame.select("trace_id", "span_id", "parent_span_id", "name", "start", "end").rows() == [
        (span.trace_id, span.span_id, span.parent, span.name, span.start, span.end) for span in lines
    ]
    assert pl.Series(frame["attributes"]).str.json_decode(pl.Struct({names.REQUEST_ID: pl.String})).len() == len(lines)
    assert not part.exists()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_parquet_keeps_what_links_and_callers_say(tmp_path):
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "traceState": "vendor=1", "name": "n", "kind": 1,
        "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": [],
        "links": [
            {"traceId": "3" * 32, "spanId": "4" * 16,
             "attributes": [{"key": names.LINK_REASON, "value": {"stringValue": "store"}}]},
            {"traceId": "5" * 32, "spanId": "6" * 16},
        ],
    }  # fmt: skip
    scope = {"scope": {"name": "otel_cache"}, "spans": [span]}
    lines, out = tmp_path / "lines", tmp_path / "out"
    lines.write_text(json.dumps({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}) + "\n")
    convert(str(lines), str(out))
    (row,) = pl.read_parquet(out).rows(named=True)
    assert row["trace_state"] == "vendor=1"
    assert json.loads(row["links"]) == [
        {"trace_id": "3" * 32, "span_id": "4" * 16, "attributes": {names.LINK_REASON: "store"}},
        {"trace_id": "5" * 32, "span_id": "6" * 16},
    ]


def test_an_empty_parquet_capture_is_a_file(start, tmp_path):
    out = tmp_path / "out.parquet"
    assert start(out).stop() == 0
    assert pl.read_parquet(out).height == 0


def test_a_full_disk_is_counted_and_the_sidecar_goes_on(start, socket_path, capfd):
    sidecar = start(Path("/dev/full"))
    peer = Peer(socket_path, hello())
    for first in (0, 10):
        peer.send(*whole_request(first))

    assert sidecar.stop() == INCOMPLETE
    complaints = capfd.readouterr().err
    assert complaints.count("No space left on device") == 1
    assert f"0 spans written to /dev/full, {2 * SPANS} spans could not be written" in complaints


@pytest.mark.parametrize(
    ("out", "said"),
    [("out.jsonl", ""), ("/dev/full", f"No space left on device|otel-cache: {2 * SPANS} spans could not be written\n")],
)
def test_a_quiet_sidecar_says_what_was_lost_and_nothing_else(socket_path, tmp_path, capfd, out, said):
    child = start_child(socket_path, str(tmp_path / out), quiet=True)
    peer = Peer(socket_path, hello())
    for first in (0, 10):
        peer.send(*whole_request(first))
    child.stop()
    complaints = capfd.readouterr().err
    assert bool(complaints) == bool(said)
    assert all(part in complaints for part in said.split("|"))
    assert "spans written" not in complaints


def test_a_pipe_gets_every_line_while_somebody_reads(start, socket_path, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sidecar = start(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    peer = Peer(socket_path, hello())
    for number in range(50):
        peer.send(*whole_request(10 * number, f"r{number}"))
    code = sidecar.stop()
    reader.join()

    (tmp_path / "read").write_bytes(read[0])
    assert code == 0
    assert len(named(read_lines(tmp_path / "read"), names.REQUEST)) == 50


def test_a_pipe_that_nobody_reads_does_not_keep_the_sidecar(start, socket_path, tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe")
    sidecar = start(tmp_path / "pipe")
    peer = Peer(socket_path, hello())
    for number in range(50):
        peer.send(*whole_request(10 * number, f"r{number}"))
    began = time.monotonic()

    assert sidecar.stop() == INCOMPLETE
    assert time.monotonic() - began < 2 * PATIENCE_SECONDS
    assert "nobody reads it" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--socket", "--out", "--endpoint"])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param([sys.executable, "-m", "otel_cache.sidecar"], id="module"),
        pytest.param([str(Path(sys.executable).with_name("otel-cache")), "sidecar"], id="command"),
    ],
)
def test_an_option_that_is_empty_is_refused(socket_path, program, option):
    options = {"--socket": socket_path, option: ""}
    words = [word for pair in options.items() for word in pair]
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert option in done.stderr
    assert "empty: is a variable unset?" in done.stderr
    assert not Path(socket_path).exists()


def test_one_sidecar_per_socket(start, socket_path, tmp_path):
    start(tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="exit code 2"):
        start_child(socket_path, str(tmp_path / "other.jsonl"))
    assert not (tmp_path / "other.jsonl").exists()


def test_a_dead_sidecar_s_socket_is_taken_over(start, socket_path, tmp_path):
    Path(socket_path).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(socket_path)
    start(tmp_path / "out.jsonl")

    Peer(socket_path, hello()).close()


def test_a_file_that_cannot_be_written_is_said_at_once(socket_path, tmp_path, capfd):
    with pytest.raises(UsageError):
        start_child(socket_path, str(tmp_path / "missing" / "out.jsonl"))
    assert "cannot write" in capfd.readouterr().err
    assert not Path(socket_path).exists()
