"""The same workload gives the same spans in every vLLM that behaves alike: ids and times apart, nothing differs.

Every version is compared with the one in the tests' environment. Where one differs the table says why; it must differ
then.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import EXTERNAL, FULL, HYBRID, MTP, request, resent, scenario, shipped
from vllm_versions import INSTALLED, VERSIONS

from otel_cache.semconv import names
from signals.spans import Run, Span, read

pytestmark = pytest.mark.vllm

TIMES = {
    names.REQUEST_QUEUE_DURATION,
    names.REQUEST_TIME_TO_FIRST_TOKEN,
    names.STEP_SCHEDULE_DURATION,
    names.STEP_EXECUTE_DURATION,
    names.EVICT_AGE,
}
WINDOW = [{"kind": "sliding_window", "window": 128}, *FULL]
IMAGES = [{"content": "cat", "offset": 100, "tokens": 50}, {"content": "dog", "offset": 500, "tokens": 80}]
CROWDED = [
    request("a", ("a", 700), output_tokens=100),
    request("b", ("b", 700), output_tokens=100, **{"with": "a"}),
    request("again", ("a", 700)),
]
KEYS = [
    request("plain", ("a", 321)),
    request("salted", ("a", 321), cache_salt="pepper", times=2),
    request("adapted", ("a", 321), lora="adapter", times=2),
    request("images", ("a", 1000), items=IMAGES),
    request("other", ("a", 1000), items=[IMAGES[0], IMAGES[1] | {"content": "cow"}]),
    request("skipped", ("a", 321), skip_prefix_cache=True),
]
ENDS = [
    request("turn", ("a", 300), output_tokens=101),
    request("next", ("a", 300), ("output:turn", 101), ("q", 50), output_tokens=40, stop_after=11),
    request("gone", ("c", 3000), output_tokens=40, abort_after=9, reset=True),
]

CASES: dict[str, dict[str, Any]] = {
    "attention": scenario(resent(1000)),
    "attention, drafts": scenario(resent(1000), speculative=MTP | {"accepted_tokens": 1}),
    "attention, ngram": scenario(resent(1000), speculative={"method": "ngram", "num_speculative_tokens": 2}),
    "window": scenario(resent(1000), WINDOW, prefix_cache_retention_interval="dense"),
    "hybrid": scenario(resent(11910), HYBRID, block_size=1600, prefix_cache_retention_interval="dense"),
    "hybrid, drafts": shipped("model_case", prefix_cache_retention_interval="dense"),
    "hybrid, sparse": shipped("model_case"),
    "branch": shipped("early_branch"),
    "partial hits": scenario(resent(5000), HYBRID, block_size=1600, prefix_match_unit=16),
    "evictions": scenario(
        [request(name, (name[0], 1601), output_tokens=20) for name in ("a", "b", "a-again")], num_gpu_blocks=150
    ),
    "preemption": scenario(CROWDED, num_gpu_blocks=97),
    "keys": scenario(KEYS),
    "ends": scenario(ENDS),
    "two replicas": scenario(resent(1000, 4), replicas=2),
    "decode bench": scenario(resent(1000), connector="decode_bench"),
    "connector": shipped(
        "early_branch", connector=EXTERNAL | {"extra": {"upto": 11000, "only": "child"}}, speculative=None
    ),
    "cpu offload": scenario(
        [request(name, (name[0], 1000)) for name in ("a", "b", "b-again", "a-again")],
        num_gpu_blocks=100,
        cpu_offload={"blocks": 300},
    ),
}

Older = Callable[[tuple[int, ...]], bool]


def before(minor: int) -> Older:
    """Return whether a version is older than 0.`minor`."""
    return lambda version: version < (0, minor)


def since(minor: int) -> Older:
    """Return whether a version is 0.`minor` or newer."""
    return lambda version: version >= (0, minor)


BEYOND = (before(32), "the groups that drop a block look no further than the longest hit, since 0.32 a block beyond")
SPARSE = (before(30), "the retention mask keeps 11,200, not the 9,600 that a resend can reach")
AHEAD = (since(33), "a key covers the draft's tokens behind its block, instead of a block that is dropped")
LATER = (before(30), "with async scheduling a Mamba state's block is freed a step later")
DIFFERENT: dict[tuple[str, bool], list[tuple[Older, str]]] = {
    ("hybrid", True): [LATER],
    ("connector", True): [LATER],
    **{("attention, drafts", mode): [AHEAD] for mode in (False, True)},
    **{(case, mode): [BEYOND, AHEAD] for case in ("hybrid, drafts", "branch") for mode in (False, True)},
    **{("hybrid, sparse", mode): [BEYOND, SPARSE, AHEAD] for mode in (False, True)},
}
"""By case and scheduler (True: async): which versions differ from the installed one, and why."""


def flat(run: Run, span: Span) -> dict[str, Any]:
    """Return what a span says, ids and times apart: other spans by name and request instead of by id."""
    by_id = {each.id: each for each in run.spans}

    def who(identifier: str) -> Any:
        other = by_id.get(identifier)
        if other is None:
            return identifier and "elsewhere"
        return [other.name, other.get(names.REQUEST_ID) or other.get(names.STEP_INDEX)]

    return {
        "name": span.name,
        "parent": who(span.parent),
        "replica": span.resource[names.REPLICA_ID],
        "links": [[who(identifier), attributes] for identifier, attributes in span.links],
        **{key: value for key, value in span.attributes.items() if key not in TIMES},
    }


def comparable(run: Run) -> list[dict[str, Any]]:
    """Return all spans in one order for all versions: by the records they stand for, then by what they say."""
    return sorted((flat(run, span) for span in run.spans), key=_order)


def _order(span: Mapping[str, Any]) -> Any:
    return span["replica"], span.get(names.RECORD_SEQUENCE, -1), span["name"], str(sorted(span.items(), key=str))


_KNOWN: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}


def spans_of(lab: Labs, version: str, case: str, asynchronous: bool, out: Path) -> list[dict[str, Any]]:
    """Return the spans of a case in one version; the same runs serve all comparisons."""
    key = (version, case, asynchronous)
    if key not in _KNOWN:
        data = CASES[case]
        said = lab[version].run(data | {"engine": data["engine"] | {"async_scheduling": asynchronous}}, out)
        _KNOWN[key] = comparable(Run(read(out), said))
    return _KNOWN[key]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [version for version in VERSIONS if version != INSTALLED])
def test_same_spans(lab: Labs, tmp_path: Path, version: str, case: str, asynchronous: bool) -> None:
    """Span for span, attribute for attribute; the reason where a version differs, and then it does."""
    number = tuple(int(part) for part in version.split(".")[:2])
    reasons = [why for applies, why in DIFFERENT.get((case, asynchronous), []) if applies(number)]
    installed = spans_of(lab, INSTALLED, case, asynchronous, tmp_path / "installed.jsonl")
    other = spans_of(lab, version, case, asynchronous, tmp_path / "other.jsonl")
    found = differences(installed, other)
    if reasons:
        assert found, f"no longer different: {reasons}"
    else:
        assert not found, "\n".join(found)


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[str]:
    """Return in which attributes two lists of spans differ, the first ten."""
    found = [f"{len(one)} spans, {len(other)} spans"] if len(one) != len(other) else []
    for a, b in zip(one, other, strict=False):
        found += [
            f"{a['name']} {a.get(names.REQUEST_ID)}: {key}: {a.get(key)} != {b.get(key)}"
            for key in {**a, **b}
            if a.get(key) != b.get(key)
        ]
    return found[:10]
