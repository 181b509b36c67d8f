"""`otel-cache probe` against small real servers: what it finds, and what it says of servers that lack something."""

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from analyzers.cli import main
from analyzers.probe import session
from tests.certificates import make_certificate

from .small_server import Small, SmallServer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are watched for a moment only, and no key or proxy of the user is taken."""
    monkeypatch.setattr(session, "QUIET_SECONDS", 0.01)
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


class Run:
    """Runs the command, and keeps what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        with pytest.raises(SystemExit) as ended:
            main(["probe", *words])
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def report(self, *words: str) -> dict[str, Any]:
        """Return the JSON report, `--prompt-tokens 200` unless another length is given."""
        length = [] if "--prompt-tokens" in words else ["--prompt-tokens", "200"]
        code, out, err = self(*words, *length, "--format", "json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    def error(self, *words: str) -> str:
        """Return the sentence that the command ends with."""
        code, out, err = self(*words)
        assert (code, out) == (2, ""), err
        assert err.startswith("Error: ")
        assert err.count("\n") == 1
        return err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command."""
    return Run(capsys)


def hits(report: dict[str, Any], shape: str) -> list[int]:
    """Return the hits of a shape's sends to the probed server."""
    return next(each["hits"] for each in report["servers"][0]["shapes"] if each["shape"] == shape)


@pytest.mark.parametrize(
    ("small", "verdict", "identical", "before"),
    [
        # 200 tokens: twelve blocks of 16 are 192; a prompt that leaves before 192 shares eleven, 176.
        (Small(), "hit", [0, 192, 192, 192], [0, 176, 192, 192]),
        (Small(late=2), "miss-miss-hit", [0, 0, 192, 192], [0, 0, 176, 192]),
        (Small(caching=False), "caching-off", [0, 0, 0, 0], [0, 0, 0, 0]),
        (Small(block=128), "coarse-match-unit", [0, 128, 128, 128], [0, 0, 128, 128]),
        (Small(system=16), "contaminated", [16, 208, 208, 208], [16, 192, 208, 208]),
        (Small(usage_only_lies=True), "reporting-bug", [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdicts(run: Run, small: Small, verdict: str, identical: list[int], before: list[int]) -> None:
    """What the server's cache does is what the probe says."""
    with SmallServer(small) as server:
        report = run.report(server.url, "--block-size", str(small.block))
    assert report["verdict"]["verdict"] == verdict
    assert (hits(report, "identical"), hits(report, "divergence-before")) == (identical, before)
    assert report["servers"][0]["sources"] == ["usage", "metrics"]
    assert any("without spans of otel-cache" in note for note in report["servers"][0]["notes"])


def test_the_grid_is_measured(run: Run) -> None:
    """Nobody says where hits can end: the hits of other prompts do."""
    with SmallServer(Small(block=48)) as server:
        report = run.report(server.url, "--prompt-tokens", "300", "--repeats", "2")
    assert (report["probe"]["grid"], report["probe"]["grid_source"]) == (48, "measured")
    # 300 = 6 * 48 + 12.
    assert report["probe"]["boundary"] == 288
    assert report["verdict"]["verdict"] == "hit"


def test_requests_one_after_the_other(run: Run) -> None:
    """Each carries an id of the probe, and what it asks for is the same for all: greedy answers of one length."""
    small = Small()
    with SmallServer(small) as server:
        report = run.report(server.url, "--block-size", "16", "--output-tokens", "5")
    sends = [body for body in small.bodies if body["max_tokens"] == 5]
    assert len(sends) == len(report["servers"][0]["requests"]) + 2
    assert {body["temperature"] for body in sends} == {0}
    metrics = [request["metrics"] for request in report["servers"][0]["requests"]]
    assert {(each["finished"], each["output_tokens"]) for each in metrics} == {(1, 5)}
    assert [each["hits"] for each in metrics] == [request["hit_tokens"] for request in report["servers"][0]["requests"]]


@pytest.mark.parametrize("tokens_per_word", [1, 3])
def test_words_where_token_ids_are_refused(run: Run, tokens_per_word: int) -> None:
    """Boundaries are met to within a word, and a note says so."""
    with SmallServer(Small(ids=False, tokenizer=False, tokens_per_word=tokens_per_word, late=2)) as server:
        report = run.report(server.url, "--block-size", "16")
    assert report["probe"]["prompts"] == "words"
    assert (hits(report, "identical"), hits(report, "divergence-before")) == ([0, 0, 192, 192], [0, 0, 176, 192])
    assert any(f"words of {tokens_per_word} tokens each" in note for note in report["servers"][0]["notes"])


def test_a_server_that_tells_less(run: Run) -> None:
    """No tokenizer, no counters, no cached tokens in the usage figures, no parameters of vLLM's."""
    small = Small(tokenizer=False, metrics=False, details=False, extras=False)
    with SmallServer(small) as server:
        report = run.report(server.url, "--block-size", "16")
    (found,) = report["servers"]
    assert found["sources"] == []
    assert found["outputs"]["by"] == "text"
    notes = " ".join(found["notes"])
    for missing in ("no tokenizer to ask (/tokenize)", "/metrics has no counters", "--enable-prompt-tokens-details"):
        assert missing in notes
    assert "by the time to the first token alone" in report["verdict"]["says"]


def test_absent_details_are_zero_where_others_have_them(run: Run) -> None:
    """Some versions of vLLM leave cached tokens out where there are none."""
    with SmallServer(Small(metrics=False, sparse=True, late=2)) as server:
        report = run.report(server.url, "--block-size", "16")
    assert hits(report, "identical") == [0, 0, 192, 192]


def test_four_servers(run: Run) -> None:
    """All get the same prompts; acceptance is that of the counters; answers are compared."""
    roles = {
        "": Small(speculation=True),
        "--control": Small(),
        "--speculation-alone": Small(caching=False, speculation=True, forgets=True),
        "--plain": Small(caching=False),
    }
    with ExitStack() as stack:
        urls = {role: stack.enter_context(SmallServer(small)).url for role, small in roles.items()}
        words = [word for pair in urls.items() for word in pair if word]
        report = run.report(*words, "--block-size", "16", "--repeats", "2")
        _, text, _ = run(*words, "--block-size", "16", "--repeats", "2", "--prompt-tokens", "200")
    servers = {server["role"]: server for server in report["servers"]}
    assert list(servers) == ["probed", "control", "speculation-alone", "plain"]
    assert [server["verdict"]["verdict"] for server in servers.values()] == ["hit", "hit", "caching-off", "caching-off"]
    # The small server accepts every other token that it drafts.
    assert [server["summary"]["acceptance_rate"] for server in servers.values()] == [0.5, None, 0.5, None]
    assert [bool(server["summary"]["hit_rate"]) for server in servers.values()] == [True, True, False, False]
    assert servers["probed"]["outputs_against_probed"] is None
    assert servers["control"]["outputs_against_probed"]["equal"]
    assert not servers["speculation-alone"]["outputs"]["equal"]
    assert not servers["speculation-alone"]["outputs_against_probed"]["equal"]
    prompts = [[body["prompt"] for body in small.bodies if body["max_tokens"] == 16] for small in roles.values()]
    # The warm-ups differ, and come first.
    half = len(prompts[0]) // 2
    assert prompts[0][2:half] == prompts[1][2:half] == prompts[2][2:half] == prompts[3][2:half]
    for shown in ("Side by side", "speculation-alone", "50.0 %", "acceptance"):
        assert shown in text


def test_servers_out_of_their_roles(run: Run) -> None:
    """The plain one caches and speculates, the one with speculation alone does neither."""
    smalls = (Small(), Small(speculation=True), Small(caching=False))
    with ExitStack() as stack:
        probed, plain, alone = (stack.enter_context(SmallServer(small)).url for small in smalls)
        words = (probed, "--plain", plain, "--speculation-alone", alone)
        report = run.report(*words, "--block-size", "16", "--repeats", "2")
    notes = {server["role"]: " ".join(server["notes"]) for server in report["servers"]}
    assert "reuses prefixes: it is no plain" in notes["plain"]
    assert "speculates: it is no plain" in notes["plain"]
    assert "counts no drafted tokens" in notes["speculation-alone"]
    assert "it is no" not in notes["probed"] + notes["speculation-alone"]


def test_the_text(run: Run, tmp_path: Path) -> None:
    """The verdict, a line per shape, what is missing; the same into a file."""
    with SmallServer(Small(late=2)) as server:
        code, out, err = run(
            server.url, "--block-size", "16", "--prompt-tokens", "200", "--output", str(tmp_path / "r")
        )
    assert (code, out, err) == (0, "", "")
    text = (tmp_path / "r").read_text()
    assert "Verdict: miss-miss-hit at boundary 192" in text
    assert "0 0 176 192" in text
    assert "Seen at: identical, extension, divergence-before, divergence-after" in text
    assert max(map(len, text.splitlines())) <= 100


def test_down(run: Run) -> None:
    """Nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "nobody answers there" in run.error(f"http://127.0.0.1:{port}")
    assert "nobody answers there" in run.error("http://no-such-host.invalid:8000")


def test_slow(run: Run) -> None:
    """It takes the connection and says nothing, or says it too late."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = run.error(f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
    assert "no whole answer within 0.2 s" in error
    assert "--timeout" in error
    with SmallServer(Small(delay=30)) as server:
        assert "no whole answer within 0.3 s" in run.error(server.url, "--timeout", "0.3")


def test_dripping(run: Run) -> None:
    """A stream that goes on and on is ended too."""

    class Dripping(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "drip"}]}).encode() if self.path == "/v1/models" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/v1/completions":
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            stop = threading.Event()
            try:
                while not stop.wait(0.05):
                    self.wfile.write(b'data: {"choices": [{"text": " w"}]}\n\n')
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    with serving(Dripping) as url:
        assert "no whole answer within 0.5 s" in run.error(url, "--timeout", "0.5")


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with this handler."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_authentication(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, with a wrong one, with the right one from a file or the environment."""
    (tmp_path / "wrong").write_text("other\n")
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    with SmallServer(Small(key="secret")) as server:
        assert "wants authentication (401): give a key by --api-key-file or OPENAI_API_KEY" in run.error(server.url)
        assert "refuses the key" in run.error(server.url, "--api-key-file", str(tmp_path / "wrong"))
        assert "holds no key" in run.error(server.url, "--api-key-file", str(tmp_path / "empty"))
        assert "cannot be read" in run.error(server.url, "--api-key-file", str(tmp_path / "none"))
        words = (server.url, "--block-size", "16", "--repeats", "2")
        assert run.report(*words, "--api-key-file", str(tmp_path / "right"))["verdict"]["verdict"] == "hit"
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert run.report(*words)["verdict"]["verdict"] == "hit"


def test_wrong_model(run: Run) -> None:
    """It names what is served."""
    with SmallServer(Small()) as server:
        assert "serves no model large; it serves small" in run.error(server.url, "--model", "large")


def test_others_use_it(run: Run) -> None:
    """Requests are running; counters move by themselves; either way it can be told to go on."""
    for small in (Small(running=1), Small(moving=True)):
        with SmallServer(small) as server:
            error = run.error(server.url)
            assert "--allow-traffic" in error
            assert ("it is busy (requests running: 1" in error) == bool(small.running)
            assert ("its counters move by themselves" in error) == small.moving
            words = (server.url, "--allow-traffic", "--block-size", "16", "--repeats", "2")
            report = run.report(*words)
    # What somebody else moves too is not taken for this probe's.
    assert {request["metrics"] for request in report["servers"][0]["requests"]} == {None}
    assert report["verdict"]["verdict"] == "hit"


def test_somebody_comes_during_the_probe(run: Run) -> None:
    """The counters show a request more than was sent."""
    small = Small()
    with SmallServer(small) as server:
        serve = small.serve

        def with_another(prompt: Any) -> tuple[int, int]:
            small.totals["request_success"] += len(small.bodies) == 10
            return serve(prompt)

        small.serve = with_another  # type: ignore[method-assign]
        error = run.error(server.url, "--block-size", "16", "--prompt-tokens", "200")
    assert "requests of somebody else were served during the probe" in error


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (429, "is busy (429: on purpose)"),
        (503, "does not work at the moment (/v1/completions: 503: on purpose)"),
        (404, "the probe needs /v1/completions"),
        (307, "redirects /v1/completions"),
    ],
)
def test_statuses(run: Run, status: int, says: str) -> None:
    """What a server answers instead of a completion."""
    with SmallServer(Small(status=status)) as server:
        assert says in run.error(server.url)


def test_no_openai_server(run: Run) -> None:
    """Another web server; one that answers everything with a page; something that is no HTTP at all."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            pass

    with serving(Page) as url:
        assert "is no OpenAI-compatible server: /v1/models answers something that is no JSON" in run.error(url)

    class Nothing(Page):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

    with serving(Nothing) as url:
        assert "is no OpenAI-compatible server: /v1/models answers 404" in run.error(url)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"220 mail ready\r\n")

        threading.Thread(target=greet, daemon=True).start()
        assert "does a server for HTTP listen there?" in run.error(f"http://127.0.0.1:{other.getsockname()[1]}")


def test_tls(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No TLS there; a certificate that nobody vouches for; the same with its authority named."""
    with SmallServer(Small()) as server:
        assert "does the server speak TLS there?" in run.error(server.url.replace("http:", "https:"))
        certify(server, tmp_path)
        url = server.url.replace("http:", "https:")
        assert "SSL_CERT_FILE" in run.error(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
        assert run.report(url, "--block-size", "16", "--repeats", "2")["verdict"]["verdict"] == "hit"


def certify(server: SmallServer, folder: Path) -> None:
    """Let the server speak TLS from now on, with a certificate of its own for 127.0.0.1."""
    certificate, key = make_certificate()
    (folder / "certificate").write_bytes(certificate)
    (folder / "key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    server.secure(context)


def test_lengths(run: Run) -> None:
    """Longer than the model takes; nothing that fits could be cached; below a block."""
    with SmallServer(Small(limit=500)) as server:
        assert "the model takes 484 tokens at most" in run.error(
            server.url, "--prompt-tokens", "600", "--block-size", "16"
        )
        assert "nothing that fits can be cached" in run.error(server.url, "--block-size", "640")
        assert "below one block of 64" in run.error(server.url, "--block-size", "64", "--prompt-tokens", "50")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["localhost:8000"], "not the URL of a server"),
        (["http://"], "not the URL of a server"),
        (["http://[::1"], "not the URL of a server"),
        ([""], "not the URL of a server"),
    ],
)
def test_urls(run: Run, words: list[str], says: str) -> None:
    """What is no URL is said to be none."""
    assert says in run.error(*words)


def test_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Certificates and proxies that cannot be used."""
    with SmallServer(Small()) as server:
        monkeypatch.setenv("HTTP_PROXY", "nonsense://x")
        assert "HTTP_PROXY" in run.error(server.url)
        monkeypatch.delenv("HTTP_PROXY")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
        assert "SSL_CERT_FILE: its certificates cannot be read" in run.error(server.url)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"data: {\n\n",
        b"data: 5\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [5]}\n\n',
        b'data: {"choices": [{"text": {}}]}\n\n',
        b"data: [DONE]\n\n",
        b'{"choices": [{"text": "no stream"}]}',
        b"\xff\xfe",
    ],
)
def test_streams_that_are_none(run: Run, data: bytes) -> None:
    """Whatever comes instead of a stream of events."""

    class Odd(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(b'{"data": [{"id": "odd"}]}' if self.path == "/v1/models" else b"")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(data)

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Odd) as url:
        assert "is no OpenAI-compatible server: " in run.error(url)


def test_options(run: Run, tmp_path: Path) -> None:
    """Options that cannot be right are refused before anything is sent."""
    small = Small()
    with SmallServer(small) as server:
        for words, says in (
            (["--spans", "x", "--otlp-port", "0"], "--spans and --otlp-port: give one of them"),
            (["--output", str(tmp_path / "none" / "r")], "there is no folder"),
            (["--repeats", "1"], "--repeats"),
            (["--spans", str(tmp_path / "none" / "spans.jsonl")], f"there is no folder {tmp_path / 'none'}"),
            (["--spans", __file__], "holds no spans"),
            (["--spans", str(tmp_path / "a.parquet")], f"until then spans are in {tmp_path / 'a.parquet.part.jsonl'}"),
        ):
            code, out, err = run(server.url, *words)
            assert (code, out) == (2, "")
            assert says in err
        twice = (server.url, "--plain", f"{server.url}/v1")
        assert "is given twice" in run.error(*twice)
    assert not small.bodies


def test_text_without_usage(run: Run) -> None:
    """No token ids, no figures: no length is known."""
    with SmallServer(Small(ids=False, counts=False)) as server:
        assert "no prompt of a known length can be made" in run.error(server.url)


def test_no_spans_come(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes to the file, or to the port: the probe does without, and says so."""
    from analyzers.probe import spans

    monkeypatch.setattr(spans, "WAIT_SECONDS", 0.2)
    (tmp_path / "none.jsonl").touch()
    with SmallServer(Small()) as server:
        words = (server.url, "--prompt-tokens", "200", "--repeats", "2", "--format", "json", "--block-size", "16")
        for more in (["--spans", str(tmp_path / "none.jsonl")], ["--otlp-port", "0"]):
            code, out, err = run(*words, *more)
            assert code == 0
            assert ("taking spans by OTLP (gRPC) on port" in err) == (more[0] == "--otlp-port")
            report = json.loads(out)
            assert report["verdict"]["verdict"] == "hit"
            notes = " ".join(report["servers"][0]["notes"])
            assert "no span of the probe's requests came to" in notes
            assert "without spans of otel-cache" in notes


def test_a_file_that_does_not_come(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar makes its file with the server's first request: where it is not there then, no more is sent."""
    from analyzers.probe import spans

    monkeypatch.setattr(spans, "WAIT_SECONDS", 0.2)
    small, path = Small(), tmp_path / "spans.jsonl"
    words = ("--spans", str(path), "--prompt-tokens", "200", "--repeats", "2", "--block-size", "16")
    with SmallServer(small) as server:
        assert f"--spans {path}: no such file" in run.error(server.url, *words)
        assert len(small.bodies) <= 2
        wait = spans.Spans.wait

        def make(self: spans.Spans, names: Any) -> Any:
            self.path.touch()
            return wait(self, names)

        monkeypatch.setattr(spans.Spans, "wait", make)
        assert run(server.url, *words)[0] == 0
