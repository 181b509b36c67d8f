"""`vllm.kv_cache.lookup` on vLLM's own scheduler: attempts, keys, items, connectors, what admission made of a hit."""

from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import EXTERNAL, FULL, HYBRID, request, resent, scenario, shipped
from vllm_versions import VERSIONS

from otel_cache.errors import LabError
from otel_cache.semconv import names
from signals.spans import Run, positions, traced

pytestmark = pytest.mark.vllm

IMAGES = [{"content": "cat", "offset": 100, "tokens": 50}, {"content": "dog", "offset": 500, "tokens": 80}]


def admitted(run: Run, name: str) -> Any:
    """Return the lookup spans of a request that led to an admission."""
    return [span for span in run.named(names.LOOKUP, name) if span[names.LOOKUP_ADMITTED]]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_thousand_refusals(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """A request at the head of the queue finds no room for 1,000 steps: one span, as many attempts as calls."""
    requests = [
        request("long", ("a", 800), output_tokens=1010),
        request("waits", ("b", 1200), delay=2, **{"with": "long"}),
    ]
    engine = {"num_gpu_blocks": 120, "async_scheduling": asynchronous}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    calls = run.said.request("waits").schedule_calls
    assert calls >= 1000
    lookup = run.one(names.LOOKUP, "waits")
    assert lookup[names.LOOKUP_ATTEMPTS] == calls
    assert lookup[names.LOOKUP_ADMITTED] is True
    assert run.one(names.LOOKUP, "long")[names.LOOKUP_ATTEMPTS] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_another_outcome_is_another_span(lab: Labs, tmp_path: Path, version: str) -> None:
    """While it waits a request's prefix is stored by the one that runs: its hit grows, and so does the list of spans.

    The first prompt is computed in two steps. The second one shares its first 800 tokens and finds no room before the
    first has ended: it hits nothing, then 800, or what was evicted of it since.
    """
    requests = [
        request("first", ("a", 800), ("x", 400), output_tokens=30),
        request("second", ("a", 800), ("y", 1000), **{"with": "first"}),
    ]
    engine = {"num_gpu_blocks": 150, "max_num_batched_tokens": 1210}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    spans = run.named(names.LOOKUP, "second")
    assert sum(span[names.LOOKUP_ATTEMPTS] for span in spans) == run.said.request("second").schedule_calls
    outcomes = [span[names.LOOKUP_HIT_TOKENS] for span in spans]
    assert all(one != next_one for one, next_one in pairwise(outcomes))
    assert [span[names.LOOKUP_ADMITTED] for span in spans] == [False] * (len(spans) - 1) + [True]
    assert outcomes[-1] == run.said.request("second").hit_tokens == 800


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_preemption(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """A preempted request is looked up again, with its output: another attempt of one request, no other miss."""
    requests = [
        request("a", ("a", 700), output_tokens=100),
        request("b", ("b", 700), output_tokens=100, **{"with": "a"}),
    ]
    engine = {"num_gpu_blocks": 97, "async_scheduling": asynchronous}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    said = run.said.request("b")
    assert (said.preemptions, said.resumed_hit_tokens) == (1, [736])
    first, second = admitted(run, "b")
    assert (first[names.LOOKUP_PROMPT_TOKENS], first[names.LOOKUP_HIT_TOKENS]) == (700, 0)
    assert second[names.LOOKUP_PROMPT_TOKENS] > 736
    assert second[names.LOOKUP_HIT_TOKENS] == second[names.LOOKUP_ADMITTED_TOKENS] == 736
    span = run.one(names.REQUEST, "b")
    assert (span[names.REQUEST_PREEMPTIONS], span[names.REQUEST_HIT_TOKENS]) == (1, 0)
    assert sum(step[names.STEP_PREEMPTED_REQUESTS] for step in run.named(names.STEP)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_skipped(lab: Labs, tmp_path: Path, version: str) -> None:
    """A request that may not read the cache: skipped, nothing found, and no group was asked."""
    requests = [request("a", ("d", 1000)), request("b", ("d", 1000), skip_prefix_cache=True), request("c", ("d", 1000))]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    found = {name: run.one(names.LOOKUP, name) for name in ("a", "b", "c")}
    assert [span[names.LOOKUP_SKIPPED] for span in found.values()] == [False, True, False]
    assert [span[names.LOOKUP_HIT_TOKENS] for span in found.values()] == run.said.hits == [0, 0, 992]
    assert found["b"][names.LOOKUP_LIMITED_BY] == names.LIMITED_BY_SKIPPED
    assert not run.children(found["b"], names.GROUP_LOOKUP)
    assert run.one(names.REQUEST, "b")[names.LOOKUP_LIMITED_BY] == names.LIMITED_BY_SKIPPED


@pytest.mark.parametrize("version", VERSIONS)
def test_keys(lab: Labs, tmp_path: Path, version: str) -> None:
    """Adapter and salt each have a digest of their own, and one together; equal tokens have equal fingerprints."""
    requests = [
        request("plain", ("a", 321)),
        request("salted", ("a", 321), cache_salt="pepper", times=2),
        request("adapted", ("a", 321), lora="adapter"),
        request("both", ("a", 321), lora="adapter", cache_salt="pepper"),
    ]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    keys = [names.KEY_DIGEST, names.KEY_LORA, names.KEY_SALT]
    plain, one, two, adapted, both = (
        [run.one(names.LOOKUP, sent.request_id).get(key) for key in keys] for sent in run.said.requests
    )
    assert plain == [None] * 3
    assert one == two
    assert one[1] is adapted[2] is None
    assert (both[1], both[2]) == (adapted[1], one[2])
    assert len({one[0], adapted[0], both[0]}) == 3
    assert run.said.hits == [0, 0, 320, 0, 0]
    assert len({run.one(names.LOOKUP, sent.request_id)[names.FINGERPRINT_PROMPT] for sent in run.said.requests}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_items(lab: Labs, tmp_path: Path, version: str) -> None:
    """Two prompts that differ in their second image alone: the first one's image still hits, the prefix ends there."""
    other = [IMAGES[0], IMAGES[1] | {"content": "cow"}]
    requests = [
        request("a", ("d", 1000), items=IMAGES),
        request("same", ("d", 1000), items=IMAGES),
        request("other", ("d", 1000), items=other),
        request("none", ("d", 1000)),
    ]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    a, same, differs, none = (run.one(names.LOOKUP, sent.request_id) for sent in run.said.requests)
    assert [span[names.LOOKUP_HIT_TOKENS] for span in (a, same, differs, none)] == run.said.hits == [0, 992, 496, 96]
    for span in (a, same, differs):
        assert span[names.KEY_ITEM_OFFSETS] == [100, 500]
    assert a[names.KEY_ITEM_DIGESTS] == same[names.KEY_ITEM_DIGESTS]
    assert a[names.KEY_ITEM_DIGESTS][0] == differs[names.KEY_ITEM_DIGESTS][0]
    assert a[names.KEY_ITEM_DIGESTS][1] != differs[names.KEY_ITEM_DIGESTS][1]
    assert none.get(names.KEY_ITEM_OFFSETS) is None
    assert a[names.FINGERPRINT_PROMPT] == same[names.FINGERPRINT_PROMPT] != differs[names.FINGERPRINT_PROMPT]
    # The tokens alone are the same: `plain` begins at 64, the other one's common grid beyond its hit, at 128.
    (plain,), (common,) = a[names.FINGERPRINT_PLAIN], none[names.FINGERPRINT_COMMON]
    assert b64decode(plain)[8:] == b64decode(common)
    assert none.get(names.FINGERPRINT_PLAIN) is None
    # The positions 512 to 992 are stored twice, once for each second image.
    assert run.stored() == {0: 62 + (62 - 31) + (62 - 6)}


@pytest.mark.parametrize("version", VERSIONS)
def test_decode_bench(lab: Labs, tmp_path: Path, version: str) -> None:
    """A connector that claims all but the last token: external tokens, admission with more than the hit."""
    run = traced(lab[version], scenario(resent(1000), connector="decode_bench"), tmp_path / "s.jsonl")
    check_admissions(run)
    assert [sent.external_tokens for sent in run.said.requests] == [999, 7, 7]


def check_admissions(run: Run) -> None:
    """Hold hits, external and discarded tokens of each request's admission against vLLM's own account."""
    for said in run.said.requests:
        (span,) = admitted(run, said.request_id)
        external = span.get(names.LOOKUP_EXTERNAL_TOKENS) or 0
        discarded = span.get(names.LOOKUP_DISCARDED_TOKENS) or 0
        assert span[names.LOOKUP_ADMITTED_TOKENS] == said.hit_tokens, said
        assert external == said.external_tokens, said
        assert span[names.LOOKUP_HIT_TOKENS] - discarded == said.local_tokens, said
        assert span[names.LOOKUP_HIT_TOKENS] - discarded + external == said.hit_tokens, said


DIVERGED = EXTERNAL | {"extra": {"upto": 11000, "only": "child"}}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_takes_the_attention_groups_hit(lab: Labs, tmp_path: Path, version: str) -> None:
    """Children that leave their parent before its last boundary: the groups disagree, a connector brings the rest.

    Attention alone has the shared prefix up to its last full block. From 0.27 on vLLM looks up by
    `get_computed_blocks_for_connector`, before by the coordinator's own method: all versions find the same.
    """
    run = traced(lab[version], shipped("early_branch", connector=DIVERGED, speculative=None), tmp_path / "s.jsonl")
    check_admissions(run)
    child = next(sent for sent in run.said.requests if sent.request_id.startswith("child"))
    assert child.local_tokens == 9600
    assert child.external_tokens == 11000 - child.local_tokens
    (lookup,) = admitted(run, child.request_id)
    assert lookup[names.LOOKUP_CONNECTOR] is True
    assert lookup[names.LOOKUP_HIT_TOKENS] == child.local_tokens
    assert lookup[names.LOOKUP_ATTEMPTS] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_has_nothing(lab: Labs, tmp_path: Path, version: str) -> None:
    """The groups disagree and nothing comes from outside: vLLM looks up again in the same step, which is one lookup.

    0.26 does not, and goes on with the attention group's hit.
    """
    run = traced(lab[version], shipped("early_branch", connector=EXTERNAL, speculative=None), tmp_path / "s.jsonl")
    check_admissions(run)
    child = next(sent for sent in run.said.requests if sent.request_id.startswith("child"))
    lookup = run.one(names.LOOKUP, child.request_id)
    assert lookup[names.LOOKUP_ATTEMPTS] == 1
    assert (lookup[names.LOOKUP_HIT_TOKENS] > 0) == (version == "0.26.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_with_attention_alone(lab: Labs, tmp_path: Path, version: str) -> None:
    """One group cannot disagree: the hit is that of the cache, the connector continues it."""
    own = EXTERNAL | {"extra": {"upto": 900}}
    requests = [request("a", ("a", 1000)), request("other", ("a", 500), ("b", 500))]
    run = traced(lab[version], scenario(requests, FULL, connector=own), tmp_path / "s.jsonl")
    check_admissions(run)
    assert [(sent.local_tokens, sent.external_tokens) for sent in run.said.requests] == [(0, 900), (496, 404)]


REPLAYED = [{"kind": "sliding_window", "window": 128, "replay": True}, *FULL]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hit_that_admission_discards(lab: Labs, tmp_path: Path, version: str) -> None:
    """Since 0.31 a window may be rebuilt instead of cached: of a hit its last 128 tokens are computed again."""
    case = scenario(resent(1000, 1), REPLAYED)
    if version in ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0"):
        with pytest.raises(LabError, match="this vLLM caches every window"):
            lab[version].run(case, tmp_path / "s.jsonl")
        return
    run = traced(lab[version], case, tmp_path / "s.jsonl")
    said = run.said.request("repeat")
    assert (said.local_tokens, said.hit_tokens) == (992, 992 - 128)
    (span,) = admitted(run, "repeat")
    assert span[names.LOOKUP_HIT_TOKENS] == 992
    assert span[names.LOOKUP_ADMITTED_TOKENS] == said.hit_tokens
    assert span[names.LOOKUP_DISCARDED_TOKENS] == 128
    assert span.get(names.LOOKUP_EXTERNAL_TOKENS) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connector_that_continues_inside_a_block(lab: Labs, tmp_path: Path, version: str) -> None:
    """A hit that ends inside a block, 4,992 of 5,000 tokens, and a connector that has all tokens but the last.

    What came from outside are the 7 tokens beyond the hit. From 0.27 on vLLM has the connector bring 199: it begins at
    the last full block of 1,600, though the cache has 192 of these tokens.
    """
    own = EXTERNAL | {"extra": {"upto": 4999, "only": "repeat"}}
    engine = {"block_size": 1600, "prefix_match_unit": 16, "connector": own}
    run = traced(lab[version], scenario(resent(5000, 1), HYBRID, **engine), tmp_path / "s.jsonl")
    said = run.said.request("repeat")
    assert (said.local_tokens, said.external_tokens) == ((4992, 7) if version == "0.26.0" else (4800, 199))
    (span,) = admitted(run, "repeat")
    assert span[names.LOOKUP_HIT_TOKENS] == 4992
    assert span[names.LOOKUP_ADMITTED_TOKENS] == said.hit_tokens == 4999
    assert span[names.LOOKUP_EXTERNAL_TOKENS] == 7


@pytest.mark.parametrize("version", VERSIONS)
def test_links(lab: Labs, tmp_path: Path, version: str) -> None:
    """A lookup that found too little names what refused the state at its boundary, and what took it."""
    case = shipped("model_case", async_scheduling=False) | {"requests": resent(11910)}
    run = traced(lab[version], case, tmp_path / "s.jsonl")
    second = run.one(names.LOOKUP, "repeat-0")
    refused = [
        run.by_id(span) for span, attributes in second.links if attributes.get(names.LINK_REASON) == names.LINK_REFUSED
    ]
    assert run.one(names.LOOKUP, "cold").get(names.LOOKUP_LOST_TO) is None
    if run.said.hits[1]:
        assert not refused
    else:
        assert second[names.LOOKUP_LOST_TO] == names.LINK_REFUSED
        assert second[names.LOOKUP_LIMITED_BY] == names.LIMITED_BY_GROUP_STATE
        assert refused
        for store in refused:
            assert store[names.REQUEST_ID] == "cold"
            masked = {
                group: positions(text)
                for group, text in zip(store[names.GROUP_IDS], store[names.STORE_MASKED], strict=True)
            }
            assert any(9600 in each for each in masked.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_link_to_the_eviction(lab: Labs, tmp_path: Path, version: str) -> None:
    """The lookup after an eviction links to the span that says whose allocation it was."""
    requests = [request("a", ("a", 1601)), request("b", ("b", 1601)), request("again", ("a", 1601))]
    run = traced(lab[version], scenario(requests, num_gpu_blocks=150), tmp_path / "s.jsonl")
    lookup = run.one(names.LOOKUP, "again")
    taken = [
        run.by_id(span) for span, attributes in lookup.links if attributes.get(names.LINK_REASON) == names.LINK_EVICTED
    ]
    assert taken
    assert lookup[names.LOOKUP_LOST_TO] == names.LINK_EVICTED
    for evict in taken:
        assert evict.name == names.EVICT
        assert evict[names.EVICT_EVICTOR_REQUEST_ID] == "b"
        assert lookup[names.LOOKUP_HIT_TOKENS] + 16 in positions(evict[names.EVICT_POSITIONS][0])
