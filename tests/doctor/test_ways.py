"""What doctor says of sidecars and collectors: real ones."""

import contextlib
import socket
import threading
from typing import Any

import grpc
import pytest
from sidecar.support import Peer, hello, lookup, replica, status_of, step, wait_until

from analyzers.doctor.checks import OK, PROBLEM, WARNING
from analyzers.doctor.context import check_context
from analyzers.doctor.ways import check_collector, check_sidecar
from otel_cache.records import LENGTH

SOCKET = "OTEL_PYTHON_VLLM_CACHE_SOCKET"
OUT = "OTEL_PYTHON_VLLM_CACHE_OUT"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_no_sidecar(socket_path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a socket that was named somebody has to start one; on the user's own it starts by itself."""
    check, status = check_sidecar({SOCKET: socket_path})
    assert (check.level, check.todo, status) == (PROBLEM, f"run: otel-cache sidecar --socket {socket_path}", None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert check_sidecar({})[0].level == OK
    (tmp_path / "otel-cache").chmod(0o777)
    assert check_sidecar({})[0].level == PROBLEM


@pytest.mark.parametrize(("traceparent", "level"), [("", WARNING), (TRACEPARENT, OK)])
def test_a_sidecar_tells_whether_context_arrives(
    start: Any, socket_path: str, tmp_path: Any, traceparent: str, level: str
) -> None:
    """One request with the caller's context, or without it."""
    start(tmp_path / "spans.jsonl")
    first, status = check_sidecar({SOCKET: socket_path})
    assert (first.level, "0 processes connected" in first.says) == (OK, True)
    assert "nothing is known yet" in check_context(status, []).says

    Peer(socket_path, hello()).send(
        replica(), lookup(1, traceparent=traceparent), step(2, 0), step(3, 1, 2_000_000_000, finished=["q"])
    )
    wait_until(lambda: status_of(socket_path).requests == 1)
    _, status = check_sidecar({SOCKET: socket_path})
    check = check_context(status, [])
    assert (check.level, check.says.partition(":")[0]) == (
        level,
        f"{int(bool(traceparent))} of 1 requests came with their caller's",
    )
    assert "--otlp-traces-endpoint" in check.todo or level == OK


def test_a_sidecar_with_losses(start: Any, socket_path: str, tmp_path: Any) -> None:
    """What did not arrive is said."""
    start(tmp_path / "spans.jsonl")
    peer = Peer(socket_path, hello())
    peer.send(replica(), lookup(5), step(6, 0))
    peer.socket.close()
    wait_until(lambda: status_of(socket_path).missing)
    check, _ = check_sidecar({SOCKET: socket_path})
    assert (check.level, "records never arrived" in check.says) == (WARNING, True)


@pytest.mark.parametrize(
    ("out", "level"),
    [({}, OK), ({OUT: "spans.jsonl"}, OK), ({OUT: "other.jsonl"}, WARNING)],
)
def test_a_sidecar_that_writes_elsewhere(
    start: Any, socket_path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, out: dict[str, str], level: str
) -> None:
    """The file of the environment is for a sidecar that the plugin starts itself."""
    monkeypatch.chdir(tmp_path)
    start(tmp_path / "spans.jsonl")
    check, _ = check_sidecar({SOCKET: socket_path, **out})
    said = f"writes to {tmp_path / 'spans.jsonl'}, not to {tmp_path / 'other.jsonl'}" in check.says
    assert (check.level, said) == (level, level == WARNING)


def test_something_else_listens(tmp_path: Any) -> None:
    """A listener that is no sidecar."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                with contextlib.suppress(OSError), connection:
                    connection.sendall(LENGTH.pack(3) + b"abc")

        threading.Thread(target=answer, daemon=True).start()
        check, status = check_sidecar({SOCKET: path})
    assert (check.level, status) == (PROBLEM, None)
    assert "does not answer like a sidecar" in check.says


def test_collectors(collector: Any, http_collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC and HTTP, with headers: an empty request reaches them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    check = check_collector({}, None)
    assert (check.level, check.says) == (OK, f"{collector.endpoint} answers")
    assert [len(request.resource_spans) for request in collector.requests] == [0]
    assert collector.metadata["authorization"] == "secret"

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", http_collector.endpoint + "/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert check_collector({}, None).level == OK
    assert http_collector.metadata["authorization"] == "secret"
    http_collector.status = 401
    check = check_collector({}, None)
    assert (check.level, "401" in check.says, "_HEADERS" in check.todo) == (PROBLEM, True, True)
    assert "secret" not in check.says


def test_a_collector_that_is_not_there(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away, unwilling, spoken to with TLS, or with an impossible setting; each within seconds."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    collector.refuse = lambda request: grpc.StatusCode.UNAUTHENTICATED
    check = check_collector({}, None)
    assert (check.level, "UNAUTHENTICATED: refused on purpose" in check.says) == (PROBLEM, True)

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.replace("http", "https"))
    assert "does not answer: UNAVAILABLE" in check_collector({}, None).says

    collector.stop()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    check = check_collector({}, None)
    assert "does not answer: UNAVAILABLE" in check.says
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in check.todo

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert "only grpc and http/protobuf" in check_collector({}, None).says


def free_port() -> int:
    """Return a port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_running_sidecar_says_where_spans_go(
    start: Any, socket_path: str, tmp_path: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment names no endpoint: to a file alone, or to its own collector, which has to answer."""
    out = tmp_path / "spans.jsonl"
    first = start(out)
    check = check_collector({SOCKET: socket_path}, status_of(socket_path))
    assert (check.level, check.says.partition(":")[0]) == (OK, f"nothing is exported but written to {out}")
    first.stop()
    start(out, collector.endpoint)
    status = status_of(socket_path)
    check = check_collector({SOCKET: socket_path}, status)
    assert (check.level, check.says) == (OK, f"{collector.endpoint} answers")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.stop()
    assert check_collector({SOCKET: socket_path}, status).level == PROBLEM


def test_the_default_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody named one and none answers: a warning; one that was named and is away is a problem."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    named = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", named)
    assert check_collector({}, None).level == PROBLEM
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    check = check_collector({}, None)
    # On a machine with a collector of its own there is nothing to warn of.
    with socket.socket() as probe:
        there = probe.connect_ex(("localhost", 4317)) == 0
    assert check.level == (OK if there else WARNING)
    assert there or ("no endpoint is named" in check.says and "OTEL_PYTHON_VLLM_CACHE_OUT" in check.todo)


def test_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file alone: no collector is asked."""
    check = check_collector({"OTEL_PYTHON_VLLM_CACHE_OUT": "spans.jsonl"}, None)
    assert (check.level, "nothing is exported" in check.says) == (OK, True)
