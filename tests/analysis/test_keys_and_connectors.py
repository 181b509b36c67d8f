"""What keys a prompt apart, and what a KV connector brings, on vLLM's own scheduler."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Labs
from lab.cases import EXTERNAL, FULL, HYBRID, MTP, request, resent, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed, check, find
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
    offloaded = scenario(requests, FULL, num_gpu_blocks=150, cpu_offload={"blocks": 1000})
    analysis = analyzed(lab[version], offloaded, tmp_path / "offload.jsonl")
    again = find(analysis, "again")
    assert again.lost == {"tail": 1, "external_hit": 1600 - again.hit_tokens}
    assert abs(again.lost["external_hit"] - lost) <= 16 * 16
    assert not {finding.rule for finding in analysis.findings} & {"unexplained", "reporting", "evicted"}


def only(name: str, upto: int) -> dict[str, Any]:
    """Return a connector that holds the first `upto` tokens of the requests whose id begins with `name`."""
    return EXTERNAL | {"extra": {"upto": upto, "only": name}}


CHILDREN = [request("parent", ("doc", 11910)), request("child", ("doc", 11195), ("own", 500))]
BLOCKS_OF_1600: dict[str, Any] = {"block_size": 1600, "prefix_cache_retention_interval": 0}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_brings_what_the_mamba_groups_lack(lab: Labs, tmp_path: Path, version: str) -> None:
    """The hit is that of the attention group alone: no state is lost, and what lies beyond came from outside.

    Of 11,195 shared tokens the common grid tells 11,008 = 43 * 256, and attention has 9,600 = 6 * 1,600. Without the
    connector the Mamba groups have nothing, and all 9,600 are lost.
    """
    case = scenario(CHILDREN, HYBRID, connector=only("child", 11000), **BLOCKS_OF_1600)
    child = find(analyzed(lab[version], case, tmp_path / "brought.jsonl"), "child")
    assert child.hit_tokens == child.needed_boundary == 9600
    assert child.lost == {"cold": 687, "tail": 8, "external_hit": 1400}
    assert (child.limiting_groups, child.reason) == ([], "")
    plain = find(
        analyzed(lab[version], scenario(CHILDREN, HYBRID, **BLOCKS_OF_1600), tmp_path / "plain.jsonl"), "child"
    )
    assert plain.hit_tokens == 0
    assert plain.lost == {"cold": 687, "tail": 1408, "not_materialized": 9600}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_brings_nothing_to_a_hybrid(lab: Labs, tmp_path: Path, version: str) -> None:
    """vLLM looks up again, on all groups' terms; 0.26 begins where the attention group ends all the same."""
    case = scenario(CHILDREN, HYBRID, connector=EXTERNAL, **BLOCKS_OF_1600)
    child = find(analyzed(lab[version], case, tmp_path / "s.jsonl"), "child")
    if version == "0.26.0":
        assert (child.hit_tokens, child.lost) == (9600, {"cold": 687, "tail": 1408})
    else:
        assert (child.hit_tokens, child.lost) == (0, {"cold": 687, "tail": 1408, "not_materialized": 9600})


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_under_speculation(lab: Labs, tmp_path: Path, version: str) -> None:
    """Attention drops a block, on 0.33 as well: with a connector its keys cover no token more.

    From 0.30 on the Mamba groups have a state further on, at 9,600, which attention cannot reach any more: vLLM looks
    up on all groups' terms, finds no hit, and has everything brought.
    """
    case = scenario(CHILDREN, HYBRID, connector=only("child", 11000), speculative=MTP, **BLOCKS_OF_1600)
    child = find(analyzed(lab[version], case, tmp_path / "s.jsonl"), "child")
    assert child.hit_tokens == (8000 if version in ("0.26.0", "0.27.1", "0.28.0", "0.29.0") else 0)
    assert child.lost == {"cold": 687, "tail": 8, "external_hit": 11000 - child.hit_tokens}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_beyond_the_hit_of_attention(lab: Labs, tmp_path: Path, version: str) -> None:
    """Every state is kept: attention drops to 8,000, the Mamba groups have 9,600. 0.26 takes the latter for the hit."""
    engine: dict[str, Any] = {"block_size": 1600, "prefix_cache_retention_interval": "dense", "speculative": MTP}
    engine |= {"max_num_batched_tokens": 1600, "connector": only("child", 11000)}
    child = find(analyzed(lab[version], scenario(CHILDREN, HYBRID, **engine), tmp_path / "s.jsonl"), "child")
    assert child.hit_tokens == (9600 if version == "0.26.0" else 8000)
    assert child.lost == {"cold": 687, "tail": 8, "external_hit": 11000 - child.hit_tokens}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_brings_more_than_the_tail_of_a_hit(lab: Labs, tmp_path: Path, version: str) -> None:
    """Of a hit of 4,992 vLLM gives up what lies beyond 4,800, the last block's end, and has it brought: 199 tokens.

    The cache had 192 of them, so they are no loss and no gain: `external_hit` are the 7 beyond the hit. 0.26 gives
    nothing up.
    """
    engine: dict[str, Any] = {"block_size": 1600, "prefix_match_unit": 16, "connector": only("repeat", 4999)}
    case, out = scenario(resent(5000, 1), HYBRID, **engine), tmp_path / "s.jsonl"
    said = lab[version].run(case, out)
    analysis = analyze(open_capture([out]))
    check(analysis, said)
    repeat, vllm = find(analysis, "repeat"), said.request("repeat")
    assert (vllm.local_tokens, vllm.external_tokens) == ((4992, 7) if version == "0.26.0" else (4800, 199))
    assert (repeat.hit_tokens, repeat.lost) == (4992, {"tail": 1, "external_hit": 7})


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


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_of_two_copies_is_no_loss(lab: Labs, tmp_path: Path, version: str, cleared: bool) -> None:
    """Two requests that read no cache leave two copies of a prompt; what pushes one of them out takes nothing away.

    A pool of 140 blocks: 63 for each copy, and 32 for another prompt, which takes 19 of the first copy.
    """
    requests = [
        request("start", ("x", 20)),
        request("one", ("doc", 1000), skip_prefix_cache=True, reset=cleared),
        request("two", ("doc", 1000), skip_prefix_cache=True),
        request("other", ("other", 500)),
        request("again", ("doc", 1000)),
    ]
    analysis = analyzed(lab[version], scenario(requests, FULL, num_gpu_blocks=140), tmp_path / "s.jsonl")
    assert dict(find(analysis, "again").lost) == {"tail": 8}
