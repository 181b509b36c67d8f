"""`otel-cache probe` on vLLM's real servers without the plugin: one that caches prefixes, and one that does not.

The second has no tokenizer either, and wants a key.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.served import serving

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
COMMAND = [sys.executable, "-c", "from analyzers.cli import main; main()", "probe"]
KEY = "secret"


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that caches prefixes and says so in its usage figures."""
    with serving(tmp_path_factory.mktemp("caching"), "--enable-prompt-tokens-details") as url:
        yield url


@pytest.fixture(scope="module")
def uncached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without prefix caching, without a tokenizer, that wants a key."""
    options = ("--no-enable-prefix-caching", "--skip-tokenizer-init", "--api-key", KEY)
    with serving(tmp_path_factory.mktemp("uncached"), *options) as url:
        yield url


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key, in a file."""
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text(f"{KEY}\n")
    return path


def probe(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command."""
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=1500)


def report(*words: str) -> dict[str, Any]:
    """Return the JSON report."""
    done = probe(*words, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_without_spans(caching: str) -> None:
    """The blocks of 640 are measured, the first repeat's miss is seen, and who is to blame is not known."""
    found = report(caching, "--repeats", "2")
    assert (found["probe"]["grid"], found["probe"]["grid_source"], found["probe"]["boundary"]) == (
        640,
        "measured",
        2560,
    )
    verdict = found["verdict"]
    assert (verdict["verdict"], verdict["boundary"], verdict["hits"]) == ("miss-miss-hit", 2560, [0, 0, 2560])
    assert (verdict["groups"], verdict["class"]) == ([], "")
    (server,) = found["servers"]
    assert server["sources"] == ["usage", "metrics"]
    assert any("otel-cache run --out FILE" in note for note in server["notes"])


def test_without_prefix_caching(uncached: str, key: Path) -> None:
    """It says that caching is off, and what else the server lacks."""
    found = report(uncached, "--api-key-file", str(key), "--repeats", "2", "--prompt-tokens", "1000")
    assert found["verdict"]["verdict"] == "caching-off"
    assert found["verdict"]["says"] == "prefix caching is off: the server looks nothing up"
    (server,) = found["servers"]
    assert {request["hit_tokens"] for request in server["requests"]} == {0}
    notes = " ".join(server["notes"])
    assert "no tokenizer to ask (/tokenize)" in notes
    assert "--enable-prompt-tokens-details" in notes


def test_without_its_key(uncached: str, tmp_path: Path) -> None:
    """None, and a wrong one."""
    done = probe(uncached)
    assert (done.returncode, done.stdout) == (2, "")
    assert "wants authentication (401): give a key by --api-key-file or OPENAI_API_KEY" in done.stderr
    (tmp_path / "wrong").write_text("other")
    assert "refuses the key" in probe(uncached, "--api-key-file", str(tmp_path / "wrong")).stderr


def test_side_by_side(caching: str, uncached: str, key: Path) -> None:
    """Both get the same prompts: one hits, the other does not, and their answers are compared token by token."""
    words = ("--plain", uncached, "--api-key-file", str(key), "--block-size", "640", "--repeats", "2")
    found = report(caching, *words, "--prompt-tokens", "1000")
    probed, plain = found["servers"]
    assert (probed["role"], plain["role"]) == ("probed", "plain")
    assert probed["summary"]["hit_rate"] > plain["summary"]["hit_rate"] == 0
    assert (probed["summary"]["acceptance_rate"], plain["summary"]["acceptance_rate"]) == (None, None)
    assert plain["outputs_against_probed"]["by"] == "tokens"
    assert plain["outputs_against_probed"]["compared"] == len(probed["requests"]) == len(plain["requests"])
