"""Nothing private leaves vLLM's process: markers are planted, and every byte that goes out is searched for them.

The real scheduler runs with its plugin, a real sidecar writes its file, spools while the collector is away and exports
once it is back; vLLM's log and the sidecar's are at DEBUG.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from socket import SHUT_WR
from typing import Any

import pytest
from conftest import Labs
from lab.cases import request, scenario
from sidecar.support import Peer, done, hello, lookup, replica, step, store, wait_until
from signals.spans import Run, read
from signals.test_versions import comparable
from vllm_versions import VERSIONS, lane_folder

from analyzers.vllm_lab.tokens import output, segment
from otel_cache import config
from otel_cache.records import Record
from otel_cache.semconv import names
from otel_cache.sidecar.launch import is_listening
from privacy.channels import Proxy, RawCollector
from privacy.markers import Markers

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
WORKLOAD = Path(__file__).with_name("workload.py")
SIDECAR = (
    "import logging, sys; logging.basicConfig(level=logging.DEBUG, format='%(name)s %(message)s');"
    "from otel_cache.sidecar.__main__ import main; sys.exit(main())"
)
VOCABULARY = (1 << 31) - 1
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = "kq7-fingerprint-key-kq7"
SECRETS = {
    "cache_salt": "kq7-cache-salt",
    "lora": "kq7-adapter",
    "lora_path": "/kq7/adapters/path",
    "session_id": "kq7-session",
}
HEADERS = {
    "traceparent": TRACEPARENT,
    "authorization": "Bearer kq7-token",
    "cookie": "kq7-cookie",
    "baggage": "user=kq7-user",
    "x-request-text": "kq7-header",
}
IMAGES = [
    {"content": "kq7-first-image", "offset": 100, "tokens": 50},
    {"content": "kq7-second-image", "offset": 500, "tokens": 80},
]
REQUESTS = [
    request("plain", ("doc", 1601), output_tokens=40),
    request("secret", ("doc", 1601), output_tokens=40, trace_headers=HEADERS, **SECRETS),
    request("images", ("doc", 1601), output_tokens=40, items=IMAGES),
    request("next", ("doc", 1601), ("output:plain", 40), ("question", 200), output_tokens=200),
    request("with", ("other", 1601), output_tokens=200, **{"with": "next"}),
    request("again", ("doc", 1601), output_tokens=40, reset=True, abort_after=20),
]
CASE = scenario(REQUESTS, num_gpu_blocks=220, vocabulary=VOCABULARY)
MARKERS = Markers(
    tokens=[
        *(segment(name, 1601, VOCABULARY) for name in ("doc", "other")),
        segment("question", 200, VOCABULARY),
        *(output(sent["id"], sent["output_tokens"], VOCABULARY) for sent in REQUESTS),
    ],
    texts=["kq7"],
)


def case(version: str) -> dict[str, Any]:
    """Return the scenario, without what this version of vLLM lacks."""
    if version not in ("0.26.0", "0.27.1"):
        return CASE
    return CASE | {"requests": [{key: sent[key] for key in sent if key != "session_id"} for sent in REQUESTS]}


def record(send: Callable[[Path, str], bytes]) -> dict[str, bytes]:
    """Return every byte that goes out of a sidecar, and into it, while `send` sends to the socket that it is given.

    `send` returns what was logged meanwhile. The collector comes when it has returned: the spans wait in the spool.
    """
    collector = RawCollector()
    with tempfile.TemporaryDirectory(prefix="otel-cache-", dir="/tmp") as name:
        folder = Path(name)
        spool, log = folder / "spool", folder / "sidecar.log"
        with log.open("wb") as stderr:
            sidecar = subprocess.Popen(
                [sys.executable, "-c", SIDECAR, "--socket", folder / "s", "--out", folder / "out.jsonl",
                 "--endpoint", f"http://localhost:{collector.port}"],
                stdout=stderr, stderr=stderr,
                env=os.environ | {config.SPOOL: str(spool), "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
            )  # fmt: skip
        try:
            wait_until(lambda: is_listening(str(folder / "s")) or sidecar.poll() is not None)
            with Proxy(str(folder / "p"), str(folder / "s")) as proxy:
                logged = send(folder, str(folder / "p"))
            spooled = wait_until(lambda: content(spool), 60)
            collector.start()
            wait_until(lambda: collector.received, 60)
        finally:
            sidecar.terminate()
            code = sidecar.wait(60)
        collector.stop()
        assert code == 0, log.read_text()
        return {
            "socket": bytes(proxy.sent),
            "evidence": (folder / "out.jsonl").read_bytes(),
            "spool": spooled,
            "OTLP": bytes(collector.received),
            "vLLM's log": logged,
            "sidecar's log": log.read_bytes(),
        }


def content(folder: Path) -> bytes:
    """Return the bytes of all files below a folder, and their names."""
    files = [path for path in folder.rglob("*.spans") if path.is_file()]
    return b"".join(str(path).encode() + path.read_bytes() for path in files)


@pytest.fixture(scope="module", params=VERSIONS)
def left(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """Run the workload in one version of vLLM, and gather what went out on the way."""

    def send(folder: Path, socket: str) -> bytes:
        (folder / "case.json").write_text(json.dumps(case(request.param)))
        path = os.pathsep.join(str(part) for part in (lane_folder(request.param), ROOT) if part)
        environ = {config.ENABLED: "true", config.SOCKET: socket, config.FINGERPRINT_KEY: KEY, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, WORKLOAD, folder / "case.json"],
            capture_output=True, timeout=300, cwd=folder, env=os.environ | environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:].decode()
        # Salt and adapter keep the second one apart, images the third; the fourth finds the first one's answer too.
        assert b"hits [0, 0, 96, " in done.stdout
        return done.stdout + done.stderr

    return record(send)


CHANNELS = ("socket", "evidence", "spool", "OTLP", "vLLM's log", "sidecar's log")


@pytest.mark.parametrize("channel", CHANNELS)
def test_nothing_private_leaves(left: dict[str, bytes], channel: str) -> None:
    """No token, no adapter, no salt, no session, no image, no header and no key, in any channel, in any encoding."""
    assert len(left[channel]) > (2000 if channel != "sidecar's log" else 0)
    assert MARKERS.found_in(left[channel]) == []


def test_what_may_leave_does(left: dict[str, bytes]) -> None:
    """The caller's trace, and that there were an adapter, a salt and images: as digests."""
    trace = TRACEPARENT.split("-")[1]
    for channel in ("evidence", "socket"):
        assert trace.encode() in left[channel]
    assert bytes.fromhex(trace) in left["OTLP"]
    for name in (names.KEY_LORA, names.KEY_SALT, names.KEY_ITEM_DIGESTS):
        assert name.encode() in left["evidence"]
    assert names.EVICT.encode() in left["evidence"]


def planted(place: str) -> Record:
    """Return a record with a marker in one place."""
    tokens = MARKERS.tokens[0][:8]
    match place:
        case "position":
            return store(1, stored=[(token, token, 1) for token in tokens])
        case "fingerprints":
            return lookup(1, fingerprints=struct.pack("<8i", *tokens))
        case "request id":
            return lookup(1, request="kq7-adapter")
        case _:
            return replica(1, **{"vllm.model": "kq7-model"})


@pytest.mark.parametrize("place", ["position", "fingerprints", "request id", "resource"])
def test_what_would_leave_is_found(place: str) -> None:
    """Planted in a record by hand, a marker is found in every channel that the record passes through."""

    def send(folder: Path, socket: str) -> bytes:
        peer = Peer(socket, hello())
        peer.send(replica(0), planted(place), lookup(2, "other"), step(3, admitted={"q": 0, "other": 0}), done(4))
        # All that it answers has to be read: a socket that is closed before loses what it sent.
        peer.socket.shutdown(SHUT_WR)
        while peer.socket.recv(1 << 16):
            pass
        peer.close()
        return b""

    channels = record(send)
    for channel in ("socket", "evidence", "spool", "OTLP"):
        assert MARKERS.found_in(channels[channel]), channel


FINGERPRINTS = {
    names.FINGERPRINT_VALUES,
    names.FINGERPRINT_HIT,
    names.FINGERPRINT_LADDER,
    names.FINGERPRINT_COMMON,
    names.FINGERPRINT_PROMPT,
    names.FINGERPRINT_PLAIN,
    names.EVICT_FINGERPRINTS,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_fingerprints_alone_depend_on_tokens(lab: Labs, tmp_path: Path, version: str) -> None:
    """Other tokens, everything else alike: the fingerprints are others, and nothing else is."""
    spans = []
    for vocabulary in (VOCABULARY, VOCABULARY - 1000):
        data = case(version) | {"engine": CASE["engine"] | {"vocabulary": vocabulary}}
        out = tmp_path / f"{vocabulary}.jsonl"
        said = lab[version].run(data, out)
        spans.append(comparable(Run(read(out), said)))
    one, other = spans
    assert one != other
    assert [without_fingerprints(span) for span in one] == [without_fingerprints(span) for span in other]


def without_fingerprints(span: dict[str, Any]) -> dict[str, Any]:
    """Return what a span says besides its fingerprints."""
    return {key: value for key, value in span.items() if key not in FINGERPRINTS}
