"""Every span of real runs against the registry: the real scheduler makes each of them happen."""

from pathlib import Path
from typing import Any

import pytest
from lab.cases import FULL, HYBRID, MTP, request, resent, scenario, shipped
from vllm_versions import INSTALLED

from otel_cache.semconv import names
from scripts.semconv.registry import load

from .rules import assert_conforms, seen

pytestmark = pytest.mark.vllm
REGISTRY = load()

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
    assert MADE.get(case, set()) <= {(span, each) for span, attributes in found.items() for each in attributes}


MADE = {
    "model case": {(names.GROUP_LOOKUP, names.GROUP_STORED_ABOVE), (names.LOOKUP, names.FINGERPRINT_COMMON)},
    "evictions": {(names.EVICT, names.EVICT_REASON), (names.EVICT, names.EVICT_EVICTOR_REQUEST_ID)},
    "keys": {(names.LOOKUP, names.KEY_DIGEST)},
    "resumed": {(names.LOOKUP, names.LOOKUP_ADMITTED_TOKENS)},
    "decode": {(names.STORE, names.FINGERPRINT_VALUES)},
}
"""What a case is there for: without it the comparison would say nothing about it."""
