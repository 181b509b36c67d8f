"""`otel-cache probe` against vLLM's real server: over HTTP, with spans that the server's sidecar exports and writes."""

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_cache.semconv import names

from .served import free_port, serving

# A probe is some forty prompts, and the engine starts first: minutes on a machine with much else to do.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
COMMAND = [sys.executable, "-c", "from analyzers.cli import main; main()", "probe"]


@dataclass(frozen=True)
class Engine:
    """A traced server: its URL, the port that its sidecar exports to, and the file that it writes."""

    url: str
    port: int
    spans: Path

    def probe(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Probe it."""
        return subprocess.run([*COMMAND, self.url, *words], capture_output=True, text=True, timeout=1500)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM 0.32, whose sidecar exports to where nobody listens yet."""
    folder = tmp_path_factory.mktemp("probed")
    port, spans = free_port(), folder / "spans.jsonl"
    traced = ("--out", str(spans), "--endpoint", f"http://localhost:{port}")
    with serving(folder, "--enable-prompt-tokens-details", traced=traced) as url:
        yield Engine(url, port, spans)


@pytest.fixture(scope="module")
def report(engine: Engine) -> dict[str, Any]:
    """What the probe says, with spans that it receives itself."""
    done = engine.probe("--otlp-port", str(engine.port), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"taking spans by OTLP (gRPC) on port {engine.port}\n"
    return dict(json.loads(done.stdout))


def test_miss_miss_hit(report: dict[str, Any]) -> None:
    """Blocks of 640: a chunk of 3,000 tokens ends at 2,944, and no group of Mamba's has a state at 2,560 = 4 * 640."""
    probe, verdict = report["probe"], report["verdict"]
    assert (probe["grid"], probe["grid_source"], probe["prompts"]) == (640, "spans", "token ids")
    # Four blocks and 11/16 of one.
    assert (probe["prompt_tokens"], probe["boundary"]) == (3000, 2560)
    assert (verdict["verdict"], verdict["pattern"], verdict["shape"]) == ("miss-miss-hit", "miss-miss-hit", "identical")
    assert (verdict["boundary"], verdict["expected_boundary"]) == (2560, 2560)
    assert (verdict["groups"], verdict["group_kinds"], verdict["class"]) == ([0, 1, 2], ["mamba"], "not_materialized")
    assert "no chunk ended there" in verdict["says"]
    assert "--max-num-batched-tokens 2560" in verdict["fix"]


def test_every_shape(report: dict[str, Any]) -> None:
    """A prompt that leaves just before 2,560 shares 1,920, one that leaves just after it all of 2,560."""
    (server,) = report["servers"]
    assert {shape["shape"]: (shape["hits"], shape["expected_boundary"]) for shape in server["shapes"]} == {
        "identical": ([0, 0, 2560, 2560], 2560),
        "extension": ([0, 0, 2560, 2560], 2560),
        "divergence-before": ([0, 0, 1920, 2560], 1920),
        "divergence-after": ([0, 0, 2560, 2560], 2560),
    }
    assert [request["hit_tokens"] for request in server["requests"] if request["shape"] == "unrelated"] == [0, 0]


def test_all_sources_agree(report: dict[str, Any]) -> None:
    """Usage figures, counters and spans, request by request; every request has its lookup."""
    (server,) = report["servers"]
    assert (server["sources"], server["notes"]) == (["usage", "metrics", "spans"], [])
    for request in server["requests"]:
        hits = {request["usage_cached_tokens"], request["metrics"]["hits"], request["lookup"]["hit_tokens"]}
        assert hits == {request["hit_tokens"]}
        assert request["metrics"]["queries"] == request["lookup"]["prompt_tokens"] == request["prompt_tokens"]
        assert (request["metrics"]["finished"], request["metrics"]["output_tokens"]) == (1, 16)
        assert 0 < request["time_to_first_token"] < request["duration"]
    assert server["cache_config"]["enable_prefix_caching"] == "True"
    assert server["settings"][names.VLLM_VERSION] == "0.32.0"
    assert server["settings"][names.HIT_ALIGNMENT] == 640
    assert "not-materialized" in {finding["rule"] for finding in server["findings"]}
    # Ten prompts went out: each answer to one that had been sent is compared.
    assert (server["outputs"]["by"], server["outputs"]["compared"]) == ("tokens", 9)


def test_spans_from_the_sidecars_file(engine: Engine, report: dict[str, Any]) -> None:
    """The same from the file, which holds the first probe's spans as well; another length."""
    words = ("--spans", str(engine.spans), "--repeats", "2", "--prompt-tokens", "1700", "--output-tokens", "2")
    done = engine.probe(*words)
    assert (done.returncode, done.stderr) == (0, "")
    # 1,280 = 2 * 640 is the last boundary in 1,700 tokens.
    assert "Verdict: miss-miss-hit at boundary 1,280: groups 0-2 (mamba)" in done.stdout
    assert "0 0 1,280" in done.stdout
    assert "by the server's spans" in done.stdout


def test_wrong_model(engine: Engine) -> None:
    """It names what vLLM serves."""
    done = engine.probe("--model", "large")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {engine.url} serves no model large; it serves tiny: give one of them by --model\n"


def test_busy(engine: Engine) -> None:
    """Long answers are under way, however long the probe takes to begin: one ends while another goes on."""
    begun, done = threading.Event(), threading.Event()

    def ask(most: int) -> None:
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": most, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"{engine.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        while not done.is_set():
            with urllib.request.urlopen(request, timeout=300) as response:
                for _ in response:
                    begun.set()
                    if done.is_set():
                        return

    asking = [threading.Thread(target=ask, args=(most,)) for most in (8000, 5000)]
    for one in asking:
        one.start()
    try:
        assert begun.wait(300)
        refused = engine.probe()
    finally:
        done.set()
        for one in asking:
            one.join()
    assert (refused.returncode, refused.stdout) == (2, "")
    busy = re.search(r"it is busy \(requests running: [12], waiting: 0\)", refused.stderr)
    assert busy or "somebody else uses it" in refused.stderr
