"""Where spans go: as it is said at the start, and held against what a real sidecar does."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_cache.config import OUT, SOCKET, read_config
from otel_cache.pipeline.destination import describe_destination
from otel_cache.pipeline.sender import Pipeline
from otel_cache.records import Record, Replica, Reset
from otel_cache.sidecar.launch import default_socket, start_child

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
HERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder that is this user's runtime folder too, with a short name, and no other settings."""
    found = Path(tempfile.mkdtemp(prefix="oc-"))
    for name in (OUT, SOCKET, ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(found))
    monkeypatch.setenv("XDG_STATE_HOME", str(found))
    monkeypatch.chdir(found)
    yield found
    shutil.rmtree(found)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "to localhost:4317, through the sidecar on {0}/otel-cache/sidecar.sock"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "to localhost:4318, through the sidecar on "),
        ({OUT: "a.jsonl"}, "to the file {0}/a.jsonl, through the sidecar on "),
        ({OUT: "a.jsonl", ENDPOINT: HERE}, f"to the file {{0}}/a.jsonl and {HERE}, through the sidecar on "),
        ({SOCKET: "/run/s", OUT: "a.jsonl", ENDPOINT: HERE}, "to the sidecar on /run/s"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "nowhere: export is turned off, and no file is named"),
    ],
)
def test_where_spans_go_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert describe_destination(read_config()).startswith("its spans go " + says.format(folder))


def test_a_folder_that_others_can_write_to_is_said(folder: Path) -> None:
    (folder / "otel-cache").mkdir()
    (folder / "otel-cache").chmod(0o777)
    assert "go nowhere" in describe_destination(read_config())


def replica(number: int) -> list[Record]:
    """Pack a replica's settings: this process has the scheduler."""
    return [Replica(number, 0, 1, {"vllm.replica.id": "r"})]


def worker(number: int) -> list[Record]:
    """Pack something else."""
    return [Reset(number, 0, 1)]


@pytest.mark.parametrize(
    ("sidecar", "variables", "says"),
    [
        # The very sidecar that another process of this server has started.
        (("a.jsonl", None), {OUT: "a.jsonl"}, ""),
        (("a.jsonl", HERE), {OUT: "link/a.jsonl", ENDPOINT: HERE}, ""),
        (("a.1.parquet", None), {OUT: "a.parquet"}, ""),
        (("a.jsonl", HERE), {OUT: "a.jsonl"}, ""),
        # Another one.
        (("a.jsonl", None), {OUT: "b.jsonl"}, "writes to {0}/a.jsonl, not to {0}/b.jsonl"),
        (("a.jsonl", None), {OUT: "a.parquet"}, "writes to {0}/a.jsonl, not to {0}/a.parquet"),
        ((None, HERE), {OUT: "b.jsonl"}, "writes to no file, not to {0}/b.jsonl"),
        (("a.jsonl", None), {ENDPOINT: HERE}, f"exports to nowhere, not to {HERE}"),
        (
            ("a.jsonl", HERE),
            {OUT: "b.jsonl", ENDPOINT: "http://127.0.0.1:2"},
            f"writes to {{0}}/a.jsonl, not to {{0}}/b.jsonl and exports to {HERE}, not to http://127.0.0.1:2",
        ),
        # One that somebody else runs has an environment of its own, and the file is its own affair unless one is named.
        (("a.jsonl", None), {SOCKET: "", ENDPOINT: HERE}, ""),
        (("a.jsonl", None), {SOCKET: "", OUT: "b.jsonl"}, "writes to {0}/a.jsonl, not to {0}/b.jsonl"),
    ],
)
def test_a_sidecar_that_does_otherwise_is_told_of_once(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sidecar: tuple[str | None, str | None],
    variables: dict[str, str],
    says: str,
) -> None:
    (folder / "link").symlink_to(folder)
    out, endpoint = sidecar
    child = start_child(default_socket(), out, endpoint)
    for name, value in variables.items():
        monkeypatch.setenv(name, value or default_socket())
    with caplog.at_level(logging.INFO, "vllm.otel_cache"):
        for kind in (worker, replica):
            pipeline = Pipeline(read_config)
            for _ in range(2):
                pipeline.push((kind,))
                pipeline.flush()
            pipeline.close()
    child.stop()
    socket = f"otel-cache: the sidecar on {folder}/otel-cache/sidecar.sock was there before and "
    assert [text.partition(": what")[0] for text in caplog.messages] == ([socket + says.format(folder)] if says else [])


def test_one_that_the_process_starts_itself_is_not_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from otel_cache.pipeline import sender

    def asked(*_: object) -> str:
        raise AssertionError

    children = []

    def ensure(socket: str, out: str | None) -> bool:
        children.append(start_child(socket, out))
        return True

    monkeypatch.setattr(sender, "find_difference", asked)
    monkeypatch.setattr(sender, "ensure_daemon", ensure)
    monkeypatch.setenv(OUT, "a.jsonl")
    pipeline = Pipeline(read_config)
    pipeline.push((replica,))
    pipeline.flush()
    pipeline.close()
    assert [child.stop() for child in children] == [0]
    assert caplog.messages == []


def test_what_does_not_answer_costs_nothing_but_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import socket

    from otel_cache.pipeline import destination

    monkeypatch.setattr(destination, "ANSWER_SECONDS", 0.1)
    monkeypatch.setenv(OUT, "a.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(default_socket())
        listening.listen()
        listening.settimeout(10)
        pipeline = Pipeline(read_config)
        pipeline.push((replica,))
        pipeline.flush()
        # The first is sent to; the second was asked how it is.
        connection, _ = listening.accept()
        asked, _ = listening.accept()
        assert connection.recv(1 << 16)
        asked.close()
        pipeline.close()
        connection.close()
    assert caplog.messages == []
