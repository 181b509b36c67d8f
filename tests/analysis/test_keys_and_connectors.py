"""What keys a prompt apart, and what a KV connector brings, on vLLM's own scheduler."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Labs
from lab.cases import FULL, request, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture

pytestmark = pytest.mark.vllm


def item(content: str) -> dict[str, Any]:
    """Return a request's image in the place of 100 tokens from 300 on."""
    return {"items": [{"content": content, "offset": 300, "tokens": 100}]}


def difference(analysis: Analysis, name: str) -> dict[str, Any]:
    """Return what the evidence says that a key differed in."""
    (fact,) = [fact for fact in find(analysis, name).facts if fact.cls == "key_difference"]
    return dict(fact.data)


@pytest.mark.parametrize("version", VERSIONS)
def test_which_key_differs(lab: Labs, tmp_path: Path, version: str) -> None:
    """Adapter, salt, image, or two of them: named, with a request that had the tokens with fewest of them changed."""
    requests = [
        request("plain", ("doc", 1000)),
        request("adapted", ("doc", 1000), lora="a"),
        request("salted", ("doc", 1000), cache_salt="s"),
        request("both", ("new", 1000), lora="a", cache_salt="s"),
        request("neither", ("new", 1000)),
        request("cat", ("doc", 1000), **item("cat")),
        request("dog", ("doc", 1000), **item("dog")),
        request("again", ("doc", 1000), **item("cat")),
    ]
    analysis = analyzed(lab[version], scenario(requests, FULL), tmp_path / "s.jsonl")
    assert difference(analysis, "adapted") == {"differs": ["lora"], "request": "plain"}
    assert difference(analysis, "salted") == {"differs": ["salt"], "request": "plain"}
    assert difference(analysis, "neither") == {"differs": ["lora", "salt"], "request": "both"}
    # The image begins at 300: 288 = 18 * 16 tokens before it are shared; the common grid names 768 of the tokens.
    cat = find(analysis, "cat")
    assert (cat.hit_tokens, cat.lost) == (288, {"cold": 232, "key_difference": 480})
    for name in ("cat", "dog"):
        assert difference(analysis, name)["differs"] == ["multimodal"]
        assert difference(analysis, name)["item_offset"] == 300
    assert find(analysis, "again").hit_tokens == 992


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_connector_brings_is_no_loss(lab: Labs, tmp_path: Path, version: str) -> None:
    """A small pool with vLLM's CPU offload behind it: what the pool evicted comes from there."""
    requests = [request("a", ("a", 1601)), request("b", ("b", 1601)), request("again", ("a", 1601))]
    small = scenario(requests, FULL, num_gpu_blocks=150)
    lost = find(analyzed(lab[version], small, tmp_path / "small.jsonl"), "again").lost["evicted"]
    out = tmp_path / "offload.jsonl"
    said = lab[version].run(scenario(requests, FULL, num_gpu_blocks=150, cpu_offload={"blocks": 1000}), out)
    analysis = analyze(open_capture([out]))
    again, vllm = find(analysis, "again"), said.request("again")
    assert (again.hit_tokens, again.lost["external_hit"]) == (vllm.local_tokens, vllm.external_tokens)
    assert again.lost == {"tail": 1, "external_hit": vllm.external_tokens}
    assert vllm.external_tokens > 0
    assert abs(vllm.external_tokens - lost) <= 16 * 16
    assert not {finding.rule for finding in analysis.findings} & {"unexplained", "reporting", "evicted"}


def test_a_prompt_without_fingerprints_is_unknown(lab: Labs, tmp_path: Path) -> None:
    """A lookup that names nothing, as of a prompt given as embeddings, is not called cold."""
    out = tmp_path / "s.jsonl"
    lab["0.32.0"].run(scenario([request("a", ("doc", 1000)), request("b", ("doc", 1000))], FULL), out)
    capture = open_capture([out])
    names = ["values", "hit_fingerprint", "ladder", "common", "prompt_digest"]
    nameless = capture.lookups.with_columns(pl.lit(b"").alias(name) for name in names)
    for lookup in analyze(replace(capture, lookups=nameless)).lookups:
        assert dict(lookup.lost) == {"unknown": 1000 - lookup.hit_tokens}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_reads_no_cache(lab: Labs, tmp_path: Path, version: str) -> None:
    """vLLM was told not to look: `skipped`, and its tokens are there for the next request."""
    requests = [
        request("a", ("doc", 1000), skip_prefix_cache=True),
        request("b", ("doc", 1000), skip_prefix_cache=True),
    ]
    case = scenario([*requests, request("c", ("doc", 1000))], FULL)
    analysis = analyzed(lab[version], case, tmp_path / "s.jsonl")
    assert [dict(lookup.lost) for lookup in analysis.lookups] == [{"skipped": 1000}, {"skipped": 1000}, {"tail": 8}]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cache_that_was_cleared(lab: Labs, tmp_path: Path, version: str) -> None:
    """Without the reset its tokens are served, and nothing else moves."""
    first, second = request("a", ("doc", 1000)), request("b", ("doc", 1000))
    before = analyzed(lab[version], scenario([first, second | {"reset": True}], FULL), tmp_path / "before.jsonl")
    after = analyzed(lab[version], scenario([first, second], FULL), tmp_path / "after.jsonl")
    assert before.lost == {**after.lost, "reset": 992}
    assert after.hit_tokens == 992
    (fact,) = find(before, "b").facts
    assert (fact.cls, fact.data["replica"], fact.data["groups"]) == ("reset", "replica-0", [0])
    assert fact.data["before_ms"] > 0
