"""Stores, evictions and resets on vLLM's own scheduler, against what its block pool holds after each step."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, MTP, request, resent, scenario
from vllm_versions import VERSIONS

from otel_cache.semconv import names
from signals.spans import Run, positions, traced

pytestmark = pytest.mark.vllm


def observed(case: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario, with the lab counting the pool's keys."""
    return case | {"observe_cache": True}


def check(run: Run) -> None:
    """Hold what was stored and which keys went against the pool's own account, group by group."""
    (replica,) = run.said.replicas
    assert run.stored() == replica.registered
    assert run.evicted() == replica.removed


LAYOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "attention": (FULL, {"num_gpu_blocks": 150}),
    "window": ([{"kind": "sliding_window", "window": 128}, *FULL], {"num_gpu_blocks": 250}),
    "hybrid": (HYBRID, {"block_size": 160, "num_gpu_blocks": 40, "prefix_cache_retention_interval": "dense"}),
    "drafts": (HYBRID, {"block_size": 160, "num_gpu_blocks": 32, "speculative": MTP}),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_small_pool(lab: Labs, tmp_path: Path, version: str, layout: str, asynchronous: bool) -> None:
    """More prompts than the pool can hold: what was stored and what went, key for key."""
    groups, engine = LAYOUTS[layout]
    requests = [request(name, (name[0], 1601), output_tokens=20) for name in ("a", "b", "c", "a-again", "c-again")]
    case = observed(scenario(requests, groups, **engine, async_scheduling=asynchronous))
    run = traced(lab[version], case, tmp_path / "s.jsonl")
    check(run)
    assert sum(run.evicted().values()) > 0
    check_evict_spans(run)


def check_evict_spans(run: Run) -> None:
    """Each evict span is below a step, in its time, and says what went, how old it was, and who got the blocks."""
    asked = {sent.request_id for sent in run.said.requests}
    for span in run.named(names.EVICT):
        step = run.by_id(span.parent)
        assert step.name == names.STEP
        assert step.start <= span.start <= span.end <= step.end
        assert span[names.EVICT_REASON] in ("allocation", "replaced")
        if span[names.EVICT_REASON] == "allocation":
            assert span[names.EVICT_EVICTOR_REQUEST_ID] in asked
            takers = [text.split(",") for text in span[names.EVICT_EVICTOR_GROUPS]]
            assert all(len(each) in (1, count) for each, count in zip(takers, span[names.EVICT_BLOCKS], strict=True))
            assert {int(group) for each in takers for group in each} <= {0, 1, 2, 3}
            linked = [run.by_id(link) for link, _ in span.links]
            assert [each[names.REQUEST_ID] for each in linked] == [span[names.EVICT_EVICTOR_REQUEST_ID]]
        for count, text, age in zip(
            span[names.EVICT_BLOCKS], span[names.EVICT_POSITIONS], span[names.EVICT_AGE], strict=True
        ):
            assert len(positions(text)) == count
            assert 0 <= age < 60_000


@pytest.mark.parametrize("version", VERSIONS)
def test_who_evicts_whom(lab: Labs, tmp_path: Path, version: str) -> None:
    """Of 149 blocks the first prompt takes 101; the second takes the 48 that are free, then 53 of the first's last.

    A prompt of 1,601 tokens has 100 full blocks, which are evicted from the last position on.
    """
    requests = [request("a", ("a", 1601)), request("b", ("b", 1601))]
    run = traced(lab[version], observed(scenario(requests, num_gpu_blocks=150)), tmp_path / "s.jsonl")
    check(run)
    evict = run.one(names.EVICT)
    assert evict[names.EVICT_EVICTOR_REQUEST_ID] == "b"
    assert evict[names.EVICT_EVICTOR_GROUPS] == ["0"]
    gone = positions(evict[names.EVICT_POSITIONS][0])
    assert evict[names.EVICT_BLOCKS] == [len(gone)]
    assert sorted(gone) == list(range(1600 - 16 * (len(gone) - 1), 1601, 16))
    # The block of the last, unfinished token carries no key and goes with them.
    assert len(gone) == 52


@pytest.mark.parametrize("version", VERSIONS)
def test_reset(lab: Labs, tmp_path: Path, version: str) -> None:
    """The cache is cleared between two sends: a span says so, and what is cleared is not evicted."""
    requests = [request("a", ("d", 1000)), request("b", ("d", 1000), reset=True), request("c", ("d", 1000))]
    run = traced(lab[version], observed(scenario(requests)), tmp_path / "s.jsonl")
    check(run)
    (span,) = [span for span in run.named(names.EVICT) if span.get(names.EVICT_RESET)]
    assert span[names.GROUP_IDS] == []
    order = {name: run.one(names.LOOKUP, name)[names.RECORD_SEQUENCE] for name in ("a", "b")}
    assert order["a"] < span[names.RECORD_SEQUENCE] < order["b"]
    assert run.one(names.LOOKUP, "b")[names.LOOKUP_HIT_TOKENS] == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_decode_stores(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """What a request generates is stored too: 100 tokens and 101 more make 12 blocks, 6 of them of the prompt."""
    requests = [request("turn", ("d", 100), output_tokens=101), request("next", ("d", 100), ("output:turn", 101))]
    run = traced(lab[version], observed(scenario(requests, async_scheduling=asynchronous)), tmp_path / "s.jsonl")
    check(run)
    stores = run.named(names.STORE, "turn")
    found = {
        origin: [position for span in stores if span[names.STORE_ORIGIN] == origin
                 for position in positions(span[names.STORE_STORED][0])]
        for origin in ("prefill", "decode")
    }  # fmt: skip
    assert found["prefill"] == list(range(16, 97, 16))
    assert found["decode"] == list(range(112, 201, 16))
    assert run.one(names.LOOKUP, "next")[names.LOOKUP_HIT_TOKENS] == run.said.hits[1] == 192
    # Their fingerprints are those that the next turn's lookup finds at its hit.
    named = [value for span in stores for value in span.get(names.FINGERPRINT_VALUES) or ()]
    assert run.one(names.LOOKUP, "next")[names.FINGERPRINT_HIT] in named


@pytest.mark.parametrize("version", VERSIONS)
def test_partial_tail(lab: Labs, tmp_path: Path, version: str) -> None:
    """Where hits may end inside a block the prompt's tail is registered there: 4,992 = 3 * 1,600 + 12 * 16."""
    engine = {"block_size": 1600, "prefix_match_unit": 16}
    run = traced(lab[version], observed(scenario(resent(5000), HYBRID, **engine)), tmp_path / "s.jsonl")
    # vLLM also moves such a key from block to block: what it holds in the end is what was stored, and nothing went.
    (replica,) = run.said.replicas
    held = Counter(replica.added)
    held.subtract(replica.removed)
    assert {group: len(set(found)) for group, found in stored_positions(run).items()} == held
    assert not run.evicted()
    for found in stored_positions(run, "cold").values():
        assert [position for position in found if position % 1600] == [4992]
    assert run.one(names.LOOKUP, "repeat-0")[names.LOOKUP_HIT_TOKENS] == run.said.hits[1] == 4992


def stored_positions(run: Run, request_id: str | None = None) -> dict[int, list[int]]:
    """Return the positions that were stored, by group."""
    found: dict[int, list[int]] = {}
    for span in run.named(names.STORE, request_id):
        for group, text in zip(span[names.GROUP_IDS], span[names.STORE_STORED], strict=True):
            found.setdefault(group, []).extend(positions(text))
    return found


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_pool_of_cpu_offload_is_not_ours(lab: Labs, tmp_path: Path, version: str, lazy: bool) -> None:
    """vLLM's CPU offloading runs a second coordinator and pool in the process: what they do is in no span.

    The second pool has 130 blocks, and three prompts of 62 go through it: it stores and evicts, and gives back what
    the first pool has lost of the second prompt.
    """
    names_ = ("a", "b", "c", "b-again", "a-again")
    requests = [request(name, (name[0], 1000)) for name in names_]
    engine = {"num_gpu_blocks": 100, "cpu_offload": {"blocks": 130, "lazy": lazy}}
    run = traced(lab[version], observed(scenario(requests, **engine)), tmp_path / "s.jsonl")
    check(run)
    assert sum(sent.external_tokens for sent in run.said.requests) > 0
    lookups = run.named(names.LOOKUP)
    assert sum(span[names.LOOKUP_ADMITTED] for span in lookups) == len(names_)
    for said in run.said.requests:
        (span,) = [each for each in run.named(names.LOOKUP, said.request_id) if each[names.LOOKUP_ADMITTED]]
        assert span[names.LOOKUP_HIT_TOKENS] == said.local_tokens
        assert (span.get(names.LOOKUP_EXTERNAL_TOKENS) or 0) == said.external_tokens
        # One pass over the one group: the other pool's lookup is none of it.
        (group,) = run.children(span, names.GROUP_LOOKUP)
        assert len(group[names.GROUP_PASS_ASKED]) == 1
