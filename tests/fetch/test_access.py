"""Who may ask, over which wire, and everything that can stand at the other end instead of a back end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analyzers.fetch import client
from analyzers.fetch.client import Access, Client
from otel_cache.errors import FetchError
from tests.certificates import make_certificate

from .servers import Server, Tempo
from .support import EXAMPLE, example, left_in, otel_cache, report, whole

Capsys = pytest.CaptureFixture[str]
TOKEN = "s3cr3t-token"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this host that signs itself, with its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(b"".join(make_certificate()))
    return path


def guarded(tempo: Tempo, server_of: list[Server]) -> Any:
    """Return a Tempo that answers only to the token."""

    def answer(path: str, parameters: Any) -> Any:
        if server_of[0].headers[-1].get("Authorization") != f"Bearer {TOKEN}":
            return 401, "Unauthorized"
        return tempo(path, parameters)

    return answer


def test_token_and_tls(certificate: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token from a file or the environment, over TLS that is verified; it is in no output."""
    holder: list[Server] = []
    file = tmp_path / "token"
    out = tmp_path / "got.jsonl"
    with Server(guarded(Tempo(example()), holder), certificate) as server:
        holder.append(server)
        asked = ["fetch", "tempo", server.url, "--out", out, *whole()]
        code, _, err = otel_cache(capsys, *asked)
        assert code == 2
        assert "CERTIFICATE_VERIFY_FAILED" in err
        assert "--ca-file" in err
        trusted = [*asked, "--ca-file", certificate]
        code, _, err = otel_cache(capsys, *trusted)
        assert code == 2
        assert "refuses to be asked without a bearer token (401: Unauthorized)" in err
        file.write_text("wrong-secret\n")
        code, _, err = otel_cache(capsys, *trusted, "--bearer-token-file", file)
        assert code == 2
        assert "refuses the bearer token that it was given (401: Unauthorized)" in err
        assert "wrong-secret" not in err
        file.write_text(f"{TOKEN}\n")
        code, text, err = otel_cache(capsys, *trusted, "--bearer-token-file", file)
        assert code == 0
        assert TOKEN not in text + err
        assert report(capsys, out) == report(capsys, EXAMPLE)
        monkeypatch.setenv("OTEL_CACHE_BEARER_TOKEN", TOKEN)
        assert otel_cache(capsys, *trusted)[0] == 0
        plain = server.url.replace("https", "http")
        code, _, err = otel_cache(capsys, "fetch", "tempo", plain, "--out", out, *whole())
        assert code == 2
        assert "the connection broke" in err
    assert TOKEN not in out.read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read (No such file"),
        (b"", "empty"),
        (b"\xff\xfe", "cannot be read"),
        (b"a\nb", "no header can"),
    ],
)
def test_tokens_that_cannot_be(content: bytes | None, says: str, tmp_path: Path, capsys: Capsys) -> None:
    """Each says what is wrong with the file."""
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    code, _, err = otel_cache(
        capsys,
        "fetch",
        "tempo",
        "http://localhost:1",
        "--out",
        tmp_path / "x",
        "--bearer-token-file",
        tmp_path / "token",
    )
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:16686", "not the URL of a server"),
        ("ftp://localhost", "not the URL of a server"),
        ("http://", "not the URL of a server"),
        ("http://[::1", "not the URL of a server"),
        ("http://user:hunter2@localhost", "holds a name or a password"),
        ("http://localhost/?q=1", "without ? and #"),
        ("", "is empty"),
        ("http://localhost:1", "nobody answers there"),
        ("http://no-such-host.invalid", "nobody answers there"),
    ],
)
@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_urls_that_lead_nowhere(backend: str, url: str, says: str, tmp_path: Path, capsys: Capsys) -> None:
    """One sentence each, no password in it, and no file."""
    code, _, err = otel_cache(capsys, "fetch", backend, url, "--out", tmp_path / "got.jsonl")
    assert code == 2
    assert says in err
    assert "hunter2" not in err
    assert left_in(tmp_path) == []


PAGE = "<!doctype html><html><body>Welcome</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, PAGE, "something else than"),
        (200, {"status": "ok"}, "something else than"),
        (200, [1, 2], "something else than"),
        (200, b"\xff\x00", "something else than"),
        (200, "[" * 100_000, "something else than"),
        (404, "404 page not found", "answers 404: 404 page not found; is this"),
        (403, "no", "refuses to be asked without a bearer token (403: no)"),
        (500, {"error": {"httpCode": 500, "message": "storage is away"}}, "answers 500: storage is away"),
        (500, {"data": None, "errors": [{"code": 500, "msg": "storage is away"}]}, "answers 500: storage is away"),
        (302, {"_headers": {"Location": "https://login.example/"}}, "redirected to https://login.example/"),
        (400, "Client sent an HTTP request to an HTTPS server.", "Client sent an HTTP request to an HTTPS server"),
    ],
)
@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_another_program_answers(
    backend: str, status: int, body: Any, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    """It is said what it is not; an earlier file stays as it was."""
    out = tmp_path / "got.jsonl"
    out.write_text("earlier\n")
    with Server(lambda *_: (status, dict(body) if isinstance(body, dict) else body)) as server:
        code, _, err = otel_cache(capsys, "fetch", backend, server.url, "--out", out)
    assert code == 2
    assert says in err
    assert len(err) < 1000
    assert (left_in(tmp_path), out.read_text()) == (["got.jsonl"], "earlier\n")


@contextmanager
def listener(says: bytes) -> Iterator[int]:
    """A port that says `says` to whoever connects, and hangs up; silent where that is empty."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(says)
                    if not says:
                        ended.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00", "not that of OTLP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "the connection broke"),
        (b"", "silent for 0.3 s"),
    ],
    ids=["a port of gRPC", "cut off", "silent"],
)
def test_what_is_no_http(says: bytes, told: str, tmp_path: Path, capsys: Capsys) -> None:
    """The likely mistake is named."""
    with listener(says) as port:
        url = f"http://127.0.0.1:{port}"
        code, _, err = otel_cache(capsys, "fetch", "jaeger", url, "--out", tmp_path / "got.jsonl", "--timeout", "0.3")
    assert code == 2
    assert told in err


def test_a_busy_server_is_asked_again() -> None:
    """With patience, but not more than a server may ask for, and not for ever."""
    busy = 3
    waits: list[float] = []

    def answer(*_: object) -> Any:
        if len(server.asked) <= busy:
            return 429 if len(server.asked) % 2 else 503, {
                "_headers": {"Retry-After": "3600"} if len(server.asked) == 2 else {}
            }
        return 200, {"services": ["vllm"]}

    with Server(answer) as server:
        asking = Client(server.url, Access(), waits.append)
        assert asking.get("/api/v3/services").json() == {"services": ["vllm"]}
        assert waits == [client.FIRST_WAIT, client.MAX_WAIT, 4 * client.FIRST_WAIT]
        busy = 1000
        with pytest.raises(FetchError, match=f"503 after {client.ATTEMPTS} attempts|429 after"):
            asking.get("/api/v3/services")
        asking.close()


def test_a_server_that_restarts_is_asked_again() -> None:
    """Once it has answered, a torn connection is not the end."""
    waits: list[float] = []
    answers = [(200, b"{}"), (200, {"_headers": {"Content-Length": "100"}}), (200, b"[]")]
    with Server(lambda *_: answers.pop(0)) as server:
        asking = Client(server.url, Access(timeout=0.5), waits.append)
        assert asking.get("/").json() == {}
        assert asking.get("/").json() == []
        asking.close()
    assert waits == [client.FIRST_WAIT]
