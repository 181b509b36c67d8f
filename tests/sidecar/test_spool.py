"""The spool: order, limits, torn files, and what one sidecar leaves to the next."""

import os
import signal
import stat
from pathlib import Path

import pytest

from otel_cache.errors import UsageError
from otel_cache.sidecar.settings import read_settings
from otel_cache.sidecar.spool import Encoded, Spool

from .support import SPANS, Peer, hello, status_of, wait_until, whole_request

PLACE = "http://localhost:4317"


def batches(count, first=0, size=100):
    return [Encoded(bytes([number]) * size, number + 1) for number in range(first, first + count)]


def drain(spool):
    found = []
    while (batch := spool.peek()) is not None:
        found.append(batch)
        spool.pop()
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.spans"))


def test_first_in_first_out_and_nothing_stays(tmp_path):
    spool = Spool(str(tmp_path), PLACE, 1 << 20)
    for batch in batches(5, 3):
        spool.append(batch)
    spool.prepend(batches(3))
    assert spool.spans == sum(range(1, 9))
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)] == [0o600] * 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in tmp_path.rglob("*") if path.is_dir())

    assert drain(spool) == batches(8)
    assert (spool.spans, spool.bytes, spool.lost) == (0, 0, 0)
    assert not files(tmp_path)
    spool.close()


def test_the_next_sidecar_goes_on_where_the_last_was(tmp_path):
    spool = Spool(str(tmp_path), PLACE, 1 << 20)
    for batch in batches(5):
        spool.append(batch)
    spool.peek()
    spool.pop()
    spool.close()
    elsewhere = Spool(str(tmp_path), "http://localhost:1", 1 << 20)
    assert len(elsewhere) == 0
    following = Spool(str(tmp_path), PLACE, 1 << 20)

    assert drain(following) == batches(5)[1:]
    following.close()
    assert not files(tmp_path)


def test_two_sidecars_never_share_files(tmp_path):
    one = Spool(str(tmp_path), PLACE, 1 << 20)
    one.append(batches(1)[0])
    other = Spool(str(tmp_path), PLACE, 1 << 20)
    assert len(other) == 0
    other.append(batches(1, 1)[0])

    assert (drain(one), drain(other)) == (batches(1), batches(1, 1))


def test_what_several_left_comes_in_the_order_of_their_start(tmp_path):
    left = [Spool(str(tmp_path), PLACE, 1 << 20) for _ in range(3)]
    for number, spool in enumerate(left):
        spool.append(batches(1, number)[0])
    for spool in reversed(left):
        spool.close()

    assert drain(Spool(str(tmp_path), PLACE, 1 << 20)) == batches(3)


def test_the_oldest_go_first_when_it_is_full(tmp_path):
    spool = Spool(str(tmp_path), PLACE, 8 * 1024)
    for batch in batches(30, size=500):
        spool.append(batch)
    kept = drain(spool)

    assert kept == batches(30, size=500)[-len(kept) :]
    assert 8 <= len(kept) <= 16
    assert spool.lost == sum(range(1, 31)) - sum(batch.spans for batch in kept)


def test_a_batch_on_its_way_is_not_lost_before_its_fate_is_known(tmp_path):
    def pushed_out():
        spool = Spool(str(tmp_path), PLACE, 8 * 1024)
        spool.append(batches(1, size=1000)[0])
        spool.peek()
        for batch in batches(20, 1, size=1000):
            spool.append(batch)
        return spool, spool.lost

    spool, lost = pushed_out()
    spool.pop()
    assert spool.lost == lost
    spool, lost = pushed_out()
    spool.keep()
    assert spool.lost == lost + 1
    assert spool.spans + spool.lost == sum(range(1, 22))


@pytest.mark.parametrize("cut", [1, 60, 116])
def test_a_torn_file_costs_its_last_batch(tmp_path, cut):
    spool = Spool(str(tmp_path), PLACE, 1 << 20)
    for batch in batches(3):
        spool.append(batch)
    spool.close()
    (path,) = files(tmp_path)
    os.truncate(path, path.stat().st_size - cut)
    following = Spool(str(tmp_path), PLACE, 1 << 20)

    assert following.torn == 1
    assert following.lost == (3 if cut < 100 else 0)  # of a header that is cut short nobody knows
    assert drain(following) == batches(2)


def test_damage_costs_one_batch(tmp_path):
    spool = Spool(str(tmp_path), PLACE, 1 << 20)
    for batch in batches(3):
        spool.append(batch)
    spool.close()
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    following = Spool(str(tmp_path), PLACE, 1 << 20)

    assert drain(following) == [batches(3)[0], batches(3)[2]]
    assert (following.torn, following.lost) == (1, 2)


def test_a_folder_that_is_open_to_others_is_not_used(tmp_path):
    spool = Spool(str(tmp_path), PLACE, 1 << 20)
    spool.append(batches(1)[0])
    spool.close()
    next(each for each in tmp_path.iterdir() if each.is_dir()).chmod(0o755)
    with pytest.raises(UsageError, match="alone"):
        Spool(str(tmp_path), PLACE, 1 << 20)


def test_the_settings_of_the_spool(tmp_path):
    assert read_settings({"XDG_STATE_HOME": "/s"}).spool == "/s/otel-cache/spool"
    assert read_settings({"OTEL_PYTHON_VLLM_CACHE_SPOOL": "off"}).spool is None
    for text, size in {"": 512 << 20, "1000": 1000, "2k": 2048, "3 MiB": 3 << 20, "1G": 1 << 30}.items():
        assert read_settings({"OTEL_PYTHON_VLLM_CACHE_SPOOL_BYTES": text}).spool_bytes == size
    for text in ("-1", "0", "many", "1T", "m"):
        with pytest.raises(UsageError, match="SPOOL_BYTES"):
            read_settings({"OTEL_PYTHON_VLLM_CACHE_SPOOL_BYTES": text})


def test_a_sidecar_sends_what_a_killed_one_left(start, socket_path, collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    killed = start(endpoint=collector.endpoint)
    peer = Peer(socket_path, hello())
    for number in range(20):
        peer.send(*whole_request(10 * number, f"r{number}"))
    wait_until(lambda: status_of(socket_path).spans_spooled == 20 * SPANS)
    os.kill(killed.pid, signal.SIGKILL)
    killed.stop()
    assert files(tmp_path / "state" / "otel-cache" / "spool")
    collector.start()
    sidecar = start(endpoint=collector.endpoint)
    wait_until(lambda: len(collector.spans) >= 20 * SPANS)
    sidecar.stop()

    assert len({span.span_id for span in collector.spans}) == len(collector.spans) == 20 * SPANS
    assert not files(tmp_path)


def test_what_waits_at_the_end_is_kept_and_said(start, socket_path, collector, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    sidecar = start(endpoint=collector.endpoint)
    Peer(socket_path, hello()).send(*whole_request())
    sidecar.stop()
    assert f"{SPANS} spans kept on disk for the next sidecar" in capfd.readouterr().err
    collector.start()
    start(endpoint=collector.endpoint).stop()

    assert len(collector.spans) == SPANS
