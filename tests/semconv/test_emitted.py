"""Every span of real runs against the registry: the real scheduler makes each of them happen."""

from pathlib import Path
from typing import Any

import pytest
from lab.cases import FULL, HYBRID, MTP, request, resent, scenario, shipped
from vllm_versions import INSTALLED

from otel_cache.semconv import names
from scripts.semconv.registry import load

from .rules import assert_conforms, read_lines, seen

pytestmark = pytest.mark.vllm
REGISTRY = load()

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODEL_CASE = shipped("model_case")
EARLY_BRANCH = shipped("early_branch")
EVICTIONS = scenario(
    [request("first", ("a", 4000)), request("second", ("b", 4000)), request("again", ("a", 4000))], num_gpu_blocks=300
)
KEYS = scenario(
    [
        request("plain", ("doc", 1000)),
        request("salted", ("doc", 1000), cache_salt="pepper"),
        request("adapted", ("doc", 1000), lora="adapter-1"),
        request("both", ("doc", 1000), cache_salt="pepper", lora="adapter-1"),
    ]
)
# The pool holds one and a half of them: the second is preempted while it decodes, and looked up again.
RESUMED = scenario(
    [
        request("one", ("a", 800), output_tokens=300),
        request("two", ("b", 800), output_tokens=300, **{"with": "one"}),
    ],
    num_gpu_blocks=110,
)
DOC = [("doc", 1000)]
IMAGE = {"offset": 200, "tokens": 300}
KINDS_OF_REQUESTS = scenario(
    [
        request("session", *DOC, session_id="conversation-7"),
        request("traced", *DOC, trace_headers={"traceparent": TRACEPARENT, "tracestate": "vendor=1"}),
        request("skipped", *DOC, skip_prefix_cache=True),
        request("cat", *DOC, items=[{"content": "cat", **IMAGE}]),
        request("dog", *DOC, items=[{"content": "dog", **IMAGE}]),
        request("stopped", *DOC, output_tokens=50, stop_after=5),
        request("aborted", *DOC, output_tokens=50, abort_after=4),
        request("reset", *DOC, reset=True),
    ]
)
CONNECTOR = scenario(resent(1000), connector="decode_bench")
OFFLOAD = scenario(
    [request("a", ("a", 4000)), request("b", ("b", 4000)), request("again", ("a", 4000))],
    num_gpu_blocks=300,
    cpu_offload={"blocks": 1000},
)
ACCEPTED = scenario(
    [request("drafted", *DOC, output_tokens=40)],
    speculative={"method": "ngram", "num_speculative_tokens": 3, "accepted_tokens": 2},
)
DECODED = scenario([request("long", ("doc", 500), output_tokens=400), request("next", ("output:long", 300))])
HYBRID_SMALL = scenario(resent(11910, 3), HYBRID, block_size=1600, num_gpu_blocks=40, speculative=MTP)

CASES: dict[str, dict[str, Any]] = {
    "model case": MODEL_CASE,
    "early branch": EARLY_BRANCH,
    "evictions": EVICTIONS,
    "keys": KEYS,
    "resumed": RESUMED,
    "decode": DECODED,
    "small hybrid": HYBRID_SMALL,
    "requests": KINDS_OF_REQUESTS,
    "connector": CONNECTOR,
    "offload": OFFLOAD,
    "accepted": ACCEPTED,
    "async": scenario(resent(3000), FULL, async_scheduling=True),
}


@pytest.mark.parametrize("case", CASES)
def test_spans_are_as_registered(case: str, lab: Any, tmp_path: Path) -> None:
    """Names, types, enumerations; what is required is there, and nothing else but what may be."""
    out = tmp_path / "spans.jsonl"
    lab[INSTALLED].run(CASES[case], out)
    assert_conforms(out, REGISTRY)
    found = seen(out)
    assert set(found) >= {"", names.REQUEST, names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.STEP}
    made = {(span, each) for span, attributes in found.items() for each in attributes}
    assert MADE.get(case, set()) - made == set()


MADE = {
    "model case": {(names.GROUP_LOOKUP, names.GROUP_STORED_ABOVE), (names.LOOKUP, names.FINGERPRINT_COMMON)},
    "evictions": {(names.EVICT, names.EVICT_REASON), (names.EVICT, names.EVICT_EVICTOR_REQUEST_ID)},
    "keys": {(names.LOOKUP, names.KEY_DIGEST)},
    "requests": {
        (names.REQUEST, names.REQUEST_SESSION_DIGEST),
        (names.REQUEST, names.REQUEST_FINISH_REASON),
        (names.REQUEST, names.REQUEST_TIME_TO_FIRST_TOKEN),
        (names.REQUEST, names.USAGE_CACHE_READ_TOKENS),
        (names.LOOKUP, names.FINGERPRINT_PLAIN),
        (names.LOOKUP, names.KEY_ITEM_OFFSETS),
        (names.EVICT, names.EVICT_RESET),
    },
    "connector": {(names.LOOKUP, names.LOOKUP_EXTERNAL_TOKENS)},
    "accepted": {(names.REQUEST, names.REQUEST_ACCEPTED_TOKENS)},
    "decode": {(names.STORE, names.FINGERPRINT_VALUES)},
}
"""What a case is there for: without it the comparison would say nothing about it."""


def test_the_resumed_request_was_preempted(lab: Any, tmp_path: Path) -> None:
    """Else the case `resumed` would compare nothing new."""
    out = tmp_path / "spans.jsonl"
    lab[INSTALLED].run(RESUMED, out)
    assert sum(values(out, names.STEP, names.STEP_PREEMPTED_REQUESTS)) > 0
    assert max(values(out, names.LOOKUP, names.LOOKUP_PROMPT_TOKENS)) > 800


def values(path: Path, span: str, attribute: str) -> list[int]:
    """Return the integers that spans of this name have under this attribute."""
    return [
        int(each["value"]["intValue"])
        for line in read_lines(path)
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for one in scope["spans"]
        if one["name"] == span
        for each in one["attributes"]
        if each["key"] == attribute
    ]
