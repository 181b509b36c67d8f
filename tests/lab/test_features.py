"""What the lab can ask of vLLM's scheduler beyond prompts: each field does what vLLM does with it, on every version."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from vllm_versions import VERSIONS

from lab.cases import EXTERNAL, HYBRID, MTP, request, resent, scenario
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

IMAGES = [{"content": "cat", "offset": 100, "tokens": 50}, {"content": "dog", "offset": 500, "tokens": 80}]


@pytest.mark.parametrize("version", VERSIONS)
def test_skipped_lookup(bare_lab: Labs, version: str) -> None:
    """It finds nothing, and computes and caches like any other."""
    requests = [request("a", ("d", 1000)), request("b", ("d", 1000), skip_prefix_cache=True), request("c", ("d", 1000))]
    assert bare_lab[version].run(scenario(requests)).hits == [0, 0, 992]


@pytest.mark.parametrize("version", VERSIONS)
def test_items(bare_lab: Labs, version: str) -> None:
    """Equal tokens and one other image: the hit ends in the block before it, 496 = 31 * 16."""
    other = [IMAGES[0], IMAGES[1] | {"content": "cow"}]
    requests = [
        request("a", ("d", 1000), items=IMAGES),
        request("same", ("d", 1000), items=IMAGES),
        request("other", ("d", 1000), items=other),
        request("none", ("d", 1000)),
    ]
    assert bare_lab[version].run(scenario(requests)).hits == [0, 992, 496, 96]


@pytest.mark.parametrize("version", VERSIONS)
def test_session(bare_lab: Labs, version: str) -> None:
    """Vllm's requests have a session id since 0.28."""
    case = scenario([request("a", ("d", 100), session_id="s")])
    if version in ("0.26.0", "0.27.1"):
        with pytest.raises(LabError, match="the session_id of a: this vLLM's requests have none"):
            bare_lab[version].run(case)
    else:
        assert bare_lab[version].run(case).hits == [0]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_how_requests_end(bare_lab: Labs, version: str, asynchronous: bool) -> None:
    """By length, a stop token, the client: ten steps give ten tokens, with async scheduling one is still to come."""
    requests = [
        request("length", ("d", 1000), output_tokens=7),
        request("stop", ("d", 1000), output_tokens=50, stop_after=10),
        request("abort", ("d", 1000), output_tokens=50, abort_after=10),
    ]
    result = bare_lab[version].run(scenario(requests, async_scheduling=asynchronous))
    assert [sent.finish_reason for sent in result.requests] == ["length", "stop", "abort"]
    assert [sent.output_tokens for sent in result.requests] == [7, 10, 9 if asynchronous else 10]


@pytest.mark.parametrize("version", VERSIONS)
def test_reset(bare_lab: Labs, version: str) -> None:
    """The cache is empty again: 62 keys of 16 tokens are cleared."""
    requests = [request("a", ("d", 1000)), request("b", ("d", 1000), reset=True), request("c", ("d", 1000))]
    result = bare_lab[version].run(scenario(requests) | {"observe_cache": True})
    assert result.hits == [0, 0, 992]
    (replica,) = result.replicas
    assert (replica.added, replica.removed, replica.cleared) == ({0: 2 * 62}, {}, {0: 62})


@pytest.mark.parametrize("version", VERSIONS)
def test_evicted_keys(bare_lab: Labs, version: str) -> None:
    """Two prompts of 62 full blocks in 99: what came and what went is what the pool holds in the end."""
    requests = [request(name, (segment, 1000)) for name, segment in (("a", "a"), ("b", "b"), ("again", "a"))]
    result = bare_lab[version].run(scenario(requests, num_gpu_blocks=100) | {"observe_cache": True})
    (replica,) = result.replicas
    # "again" hits 576 = 36 * 16 tokens and stores the other 26 blocks anew.
    assert replica.added == {0: 62 + 62 + 26}
    assert replica.added[0] - replica.removed[0] <= 99
    assert replica.removed[0] >= 26


@pytest.mark.parametrize("version", VERSIONS)
def test_delay_and_refusal(bare_lab: Labs, version: str) -> None:
    """A request that finds no room is tried in each step; the one before it holds the pool for 100 tokens."""
    requests = [
        request("long", ("a", 800), output_tokens=100),
        request("waits", ("b", 1000), delay=2, **{"with": "long"}),
    ]
    result = bare_lab[version].run(scenario(requests, num_gpu_blocks=100))
    # It arrives before the third step, and is admitted in the 101st: the first one has all its tokens then.
    assert [sent.schedule_calls for sent in result.requests] == [1, 99]


@pytest.mark.parametrize("version", VERSIONS)
def test_drafts(bare_lab: Labs, version: str) -> None:
    """Drafts per request add up to vLLM's own statistics."""
    requests = [
        request("a", ("a", 300), output_tokens=31),
        request("b", ("b", 300), output_tokens=40, **{"with": "a"}),
        request("c", ("c", 300), output_tokens=40, stop_after=10),
    ]
    result = bare_lab[version].run(scenario(requests, speculative=MTP | {"accepted_tokens": 1}))
    (replica,) = result.replicas
    assert replica.drafted == sum(sent.drafted for sent in result.requests)
    assert replica.accepted == sum(sent.accepted for sent in result.requests)
    # The prefill gives one token, every step after it two.
    assert result.request("a").accepted == 15


@pytest.mark.parametrize("version", VERSIONS)
def test_decode_bench(bare_lab: Labs, version: str) -> None:
    """The connector claims all but the last token of what the cache does not have."""
    result = bare_lab[version].run(scenario(resent(1000), connector="decode_bench"))
    assert [(sent.hit_tokens, sent.local_tokens, sent.external_tokens) for sent in result.requests] == [
        (999, 0, 999),
        (999, 992, 7),
        (999, 992, 7),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_own_connector(bare_lab: Labs, version: str) -> None:
    """It holds 8,000 tokens of every prompt; the rest is computed, and the cache then has more."""
    own = EXTERNAL | {"extra": {"upto": 8000}}
    result = bare_lab[version].run(scenario(resent(11910), HYBRID, block_size=1600, connector=own))
    assert result.hits == [8000, 11200, 11200]
    assert [sent.external_tokens for sent in result.requests] == [8000, 0, 0]


def test_connectors_that_are_not_there(bare_lab: Labs, tmp_path: Path) -> None:
    """A sentence that names the key."""
    wrong: dict[str, Any]
    for wrong, message in [
        (EXTERNAL | {"folder": str(tmp_path), "module_path": "nothing"}, "module_path: nothing cannot be imported"),
        (EXTERNAL | {"class": "Nothing"}, "engine.connector.class: external has no class Nothing"),
    ]:
        with pytest.raises(LabError, match=message):
            bare_lab["0.32.0"].run(scenario(resent(100), connector=wrong))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_cpu_offload(bare_lab: Labs, version: str, asynchronous: bool) -> None:
    """What the pool lost comes back from the other one: 26 blocks = 416 tokens beyond the hit of 576."""
    requests = [request(name, (segment, 1000)) for name, segment in (("a", "a"), ("b", "b"), ("again", "a"))]
    engine = {"num_gpu_blocks": 100, "cpu_offload": {"blocks": 300}, "async_scheduling": asynchronous}
    result = bare_lab[version].run(scenario(requests, **engine))
    assert [(sent.local_tokens, sent.external_tokens) for sent in result.requests] == [(0, 0), (0, 0), (576, 416)]


@pytest.mark.parametrize("version", VERSIONS)
def test_vocabulary(bare_lab: Labs, version: str) -> None:
    """Tokens may be as large as a token can be."""
    assert bare_lab[version].run(scenario(resent(1000), vocabulary=(1 << 31) - 1)).hits == [0, 992, 992]
