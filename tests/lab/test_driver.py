"""The lab on the real vLLM, without the instrumentation: what vLLM itself says of hits and chunks."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from vllm_versions import VERSIONS

from analyzers.vllm_lab.results import LabResult
from lab.cases import EXTERNAL, FULL, HYBRID, MTP, request, resent, scenario, shipped
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

MODEL_CASE = {
    "no speculation": ({"speculative": None}, {"0.28.0": 11200, "0.32.0": 11200, "0.33.0": 11200}),
    "default": (
        {"prefix_cache_retention_interval": "default"},
        {"0.28.0": 9600, "0.32.0": 9600, "0.33.0": 11200},
    ),
    "dense": ({"prefix_cache_retention_interval": "dense"}, {"0.28.0": 9600, "0.32.0": 9600, "0.33.0": 11200}),
    "1600": ({"prefix_cache_retention_interval": 1600}, {"0.28.0": 9600, "0.32.0": 9600, "0.33.0": 11200}),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_is_the_one_asked_for(bare_lab: Labs, version: str) -> None:
    """A lane comes before the vLLM that is installed."""
    assert bare_lab[version].run(scenario(resent(100))).vllm_version == version


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("version", "hits"),
    [("0.28.0", [0, 0, 9600, 9600]), ("0.32.0", [0, 9600, 9600, 9600]), ("0.33.0", [0, 11200, 11200, 11200])],
)
def test_model_case(bare_lab: Labs, version: str, hits: list[int], asynchronous: bool) -> None:
    """Miss, miss, hit on 0.28, with both schedulers; cured later."""
    assert bare_lab[version].run(shipped("model_case", async_scheduling=asynchronous)).hits == hits


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("setting", MODEL_CASE)
def test_settings_that_cure_the_model_case(bare_lab: Labs, version: str, setting: str) -> None:
    """A retention interval that keeps the boundary in reach, or no speculation: the first repeat hits."""
    engine, hits = MODEL_CASE[setting]
    assert bare_lab[version].run(shipped("model_case", **engine)).hits == [0] + [hits[version]] * 3


@pytest.mark.parametrize(
    ("version", "hits", "chunks"),
    [
        ("0.28.0", [0, 0, 8000, 8000], [8000, 1600, 2310]),
        ("0.32.0", [0, 0, 8000, 8000], [8000, 1600, 2310]),
        ("0.33.0", [0, 0, 9600, 9600], [8000, 3200, 710]),
    ],
)
def test_early_branch(bare_lab: Labs, version: str, hits: list[int], chunks: list[int]) -> None:
    """A child that leaves its parent before the last boundary misses, on every version."""
    result = bare_lab[version].run(shipped("early_branch"))
    assert result.hits == hits
    assert result.request("parent").chunks[:3] == chunks


@pytest.mark.parametrize("version", VERSIONS)
def test_exact_multiple_of_the_block(bare_lab: Labs, version: str) -> None:
    """A prompt that ends on a boundary: its last token is computed again, so the boundary before is the last."""
    data = scenario(resent(6400), HYBRID, block_size=1600, prefix_cache_retention_interval=0)
    hits = {"0.28.0": [0, 0, 4800], "0.32.0": [0, 4800, 4800], "0.33.0": [0, 4800, 4800]}
    assert bare_lab[version].run(data).hits == hits[version]


LAYOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "attention": (FULL, {}),
    "attention, drafts": (FULL, {"speculative": MTP}),
    "attention, ngram": (FULL, {"speculative": {"method": "ngram", "num_speculative_tokens": 2}}),
    "odd block": (FULL, {"block_size": 24}),
    "window": ([{"kind": "sliding_window", "window": 128}, *FULL], {}),
    "window, drafts": (
        [{"kind": "sliding_window", "window": 128}, *FULL],
        {"speculative": MTP, "prefix_cache_retention_interval": 0},
    ),
    "draft in the window": ([*FULL, {"kind": "sliding_window", "window": 128, "draft": True}], {"speculative": MTP}),
    "lcm": (
        [
            {"kind": "mamba", "layers": 2, "block_size": 1600},
            {"kind": "sliding_window", "window": 64, "block_size": 64},
            {"kind": "full_attention", "block_size": 16},
        ],
        {},
    ),
    "partial hits": (HYBRID, {"block_size": 1600, "prefix_match_unit": 16}),
    "one mamba group": ([{"kind": "mamba"}], {"block_size": 1600}),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(bare_lab: Labs, version: str, layout: str) -> None:
    """Any layout runs on any version; both schedulers cut and hit alike; every prompt token is computed or a hit."""
    groups, engine = LAYOUTS[layout]
    plain, asynchronous = (
        bare_lab[version].run(scenario(resent(5000), groups, **engine, num_gpu_blocks=2000, async_scheduling=mode))
        for mode in (False, True)
    )
    assert plain.hits == asynchronous.hits
    assert plain.hits[0] == 0
    assert plain.hits[-1] > 0
    for result in (plain, asynchronous):
        check_tokens(result)


def check_tokens(result: LabResult) -> None:
    """Assert that the chunks of each request that was not preempted add up to its prompt, from its hit on."""
    for sent in result.requests:
        position = sent.hit_tokens
        ends = [position := position + chunk for chunk in sent.chunks]
        assert sent.prompt_tokens in ends
        assert sent.output_tokens == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_extra_keys(bare_lab: Labs, version: str) -> None:
    """A salt and an adapter keep equal prompts apart, and the same one brings them together."""
    prompts = [
        request("plain", ("doc", 1000)),
        request("salted", ("doc", 1000), cache_salt="a", times=2),
        request("adapted", ("doc", 1000), lora="b", times=2),
    ]
    assert bare_lab[version].run(scenario(prompts)).hits == [0, 0, 992, 0, 992]


@pytest.mark.parametrize("version", VERSIONS)
def test_overlap(bare_lab: Labs, version: str) -> None:
    """Requests that start together share a step, and the second one finds what the first has not finished."""
    prompts = [
        request("first", ("doc", 3000)),
        request("second", ("other", 3000), **{"with": "first"}),
        request("third", ("doc", 3000), **{"with": "second"}),
    ]
    result = bare_lab[version].run(scenario(prompts, max_num_batched_tokens=4096, num_gpu_blocks=2000))
    assert [sent.chunks[0] for sent in result.requests][:2] == [3000, 1096]
    assert result.hits == [0, 0, 2992]


@pytest.mark.parametrize("version", VERSIONS)
def test_next_turn(bare_lab: Labs, version: str) -> None:
    """What a request generated is a segment of its own name."""
    prompts = [
        request("turn", ("doc", 1000), output_tokens=101),
        request("next", ("doc", 1000), ("output:turn", 101), ("question", 50)),
    ]
    assert bare_lab[version].run(scenario(prompts)).hits == [0, 1088]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_accepted_drafts(bare_lab: Labs, version: str, asynchronous: bool) -> None:
    """Accepted drafts change how many steps there are, and nothing of what is generated."""
    turns = [
        request("turn", ("doc", 1000), output_tokens=101),
        request("next", ("doc", 1000), ("output:turn", 101), ("question", 50)),
    ]
    steps = []
    hits = []
    for accepted in (0, 2):
        data = scenario(turns, speculative=MTP | {"accepted_tokens": accepted}, async_scheduling=asynchronous)
        result = bare_lab[version].run(data)
        steps.append(len(result.requests[0].chunks))
        hits.append(result.hits)
    assert steps[1] < steps[0] / 2
    assert hits[0] == hits[1]
    assert hits[0][1] >= 1072


@pytest.mark.parametrize("version", VERSIONS)
def test_eviction(bare_lab: Labs, version: str) -> None:
    """A pool that holds one and a half prompts loses the tail of the older one."""
    prompts = [request("a", ("a", 1000)), request("b", ("b", 1000)), request("again", ("a", 1000))]
    assert bare_lab[version].run(scenario(prompts, num_gpu_blocks=100)).hits == [0, 0, 576]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_preemption(bare_lab: Labs, version: str, asynchronous: bool) -> None:
    """Two requests that outgrow the pool: one is preempted, resumes from the cache, and both end."""
    prompts = [
        request("a", ("a", 700), output_tokens=100),
        request("b", ("b", 700), output_tokens=100, **{"with": "a"}),
    ]
    result = bare_lab[version].run(scenario(prompts, num_gpu_blocks=97, async_scheduling=asynchronous))
    assert [sent.output_tokens for sent in result.requests] == [100, 100]
    assert [sent.preemptions for sent in result.requests] == [0, 1]
    assert result.request("b").resumed_hit_tokens == [736]


@pytest.mark.parametrize("version", VERSIONS)
def test_replicas(bare_lab: Labs, version: str) -> None:
    """Each replica has a cache of its own; without a choice they take turns."""
    prompts = [request("a", ("doc", 1000), times=4), request("b", ("doc", 1000), replica=1)]
    result = bare_lab[version].run(scenario(prompts, replicas=2))
    assert [sent.replica for sent in result.requests] == [0, 1, 0, 1, 1]
    assert result.hits == [0, 0, 992, 992, 992]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_twice(bare_lab: Labs, version: str) -> None:
    """A scenario gives the same result each time, in one process."""
    first, second = (bare_lab[version].run(shipped("early_branch")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("tokens", "output_tokens", "blocks"), [(2000, 3, 50), (780, 100, 51)])
def test_pool_too_small(bare_lab: Labs, version: str, tokens: int, output_tokens: int, blocks: int) -> None:
    """A prompt or an output that can never fit is a sentence, not an endless loop; the worker lives on."""
    data = scenario([request("big", ("doc", tokens), output_tokens=output_tokens)], num_gpu_blocks=blocks)
    with pytest.raises(LabError, match=f"engine.num_gpu_blocks: a pool of {blocks} blocks is too small for big"):
        bare_lab[version].run(data)
    assert bare_lab[version].run(scenario(resent(100))).hits == [0, 96, 96]


KEEPING = """
import sys
sys.path.insert(0, {folder!r})
from external import ExternalConnector

class Keeping(ExternalConnector):
    def request_finished_all_groups(self, request, block_ids):
        return True, None

class Pushing(ExternalConnector):
    def has_pending_push_work(self):
        return True
"""


def test_a_connector_that_never_ends(bare_lab: Labs, tmp_path: Path) -> None:
    """It is said what vLLM waits for: the pool has room enough."""
    (tmp_path / "keeping.py").write_text(KEEPING.format(folder=EXTERNAL["folder"]))
    for kind, message in (
        ("Keeping", "the KV connector keeps the blocks of big after the end"),
        ("Pushing", "all requests have ended, and the KV connector says that it still has transfers to do"),
    ):
        own = {"class": kind, "module_path": "keeping", "folder": str(tmp_path)}
        with pytest.raises(LabError, match=f"engine.connector: {message}"):
            bare_lab["0.32.0"].run(scenario([request("big", ("doc", 500))], connector=own))


def test_what_vllm_refuses(bare_lab: Labs) -> None:
    """vLLM's own refusal is passed on, with its version."""
    two = [{"kind": "mamba", "layers": 2}]
    with pytest.raises(LabError, match=r"vLLM 0\.28\.0 refuses the scenario's engine: .*at least two"):
        bare_lab["0.28.0"].run(scenario(resent(5000), two, block_size=1600))
