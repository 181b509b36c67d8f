"""What a finding advises is applied to the scenario: it gives back what it says, and nothing useless is advised."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import FULL, HYBRID, request, resent, scenario
from vllm_versions import VERSIONS

from analysis.checks import analyzed, find
from analyzers.model import Analysis, Finding

pytestmark = pytest.mark.vllm

WINDOW: dict[str, Any] = {"kind": "sliding_window", "window": 128}
MULTIPLES: list[dict[str, Any]] = [
    {"kind": "full_attention", "block_size": 16},
    WINDOW | {"block_size": 64},
    {"kind": "mamba", "block_size": 1600},
]
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "hybrid": HYBRID,
    "window and full": [WINDOW, *FULL],
    "multiples": MULTIPLES,
    "two sizes": [{"kind": "mamba"}, {"kind": "full_attention", "block_size": 800}],
}


def finding_of(rule: str, analysis: Analysis) -> Finding:
    """Return the finding of this rule."""
    return next(finding for finding in analysis.findings if finding.rule == rule)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_match_unit_is_advised_where_it_brings_the_boundary_closer(
    lab: Labs, tmp_path: Path, version: str, layout: str
) -> None:
    """A prompt of 700 tokens, sent again over blocks of 800 or 1,600: which unit, if any, lets it hit?"""
    case = scenario(resent(700), LAYOUTS[layout], block_size=1600, num_gpu_blocks=1000)
    before = analyzed(lab[version], case, tmp_path / "before.jsonl")
    best = before.hit_tokens
    assert best == 0
    for unit in (8, 16):
        engine = {**case["engine"], "prefix_match_unit": unit}
        after = analyzed(lab[version], {**case, "engine": engine}, tmp_path / f"{unit}.jsonl")
        best = max(best, after.hit_tokens)
    advised = any("--prefix-match-unit" in finding.fix for finding in before.findings)
    assert advised == (best > before.hit_tokens)


def test_a_single_group_has_no_match_unit(lab: Labs, tmp_path: Path) -> None:
    """vLLM's hits land on the blocks of the one group."""
    analysis = analyzed(lab["0.32.0"], scenario(resent(1000), block_size=1600), tmp_path / "s.jsonl")
    fix = finding_of("alignment", analysis).fix
    assert "smaller blocks" in fix
    assert "--prefix-match-unit" not in fix


def test_a_block_that_is_all_of_the_prompt_is_not_too_short_to_be_cached(lab: Labs, tmp_path: Path) -> None:
    """16 tokens in blocks of 16 are cached, and no resend of them can hit: its last token is computed."""
    requests = [request("one", ("doc", 16)), request("two", ("doc", 16)), request("longer", ("doc", 17))]
    analysis = analyzed(lab["0.32.0"], scenario(requests), tmp_path / "s.jsonl")
    assert find(analysis, "two").lost == {"alignment": 16}
    assert find(analysis, "longer").hit_tokens == 16
    assert "last token of a prompt is always computed" in find(analysis, "two").cause
    assert "goes on beyond" in finding_of("alignment", analysis).fix


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("tokens", "tail"), [(11910, 710), (11200, 1600)])
def test_routing_promises_what_the_other_replica_would_have_hit(
    lab: Labs, tmp_path: Path, version: str, tokens: int, tail: int
) -> None:
    """The other replica holds the prefix in attention, and a state where a resend needs it or not."""
    requests = [request("one", ("doc", tokens)), request("two", ("doc", tokens))]
    engine = {"block_size": 1600, "prefix_cache_retention_interval": 0}
    apart = scenario(requests, HYBRID, replicas=2, **engine)
    analysis = analyzed(lab[version], apart, tmp_path / "apart.jsonl")
    together = analyzed(lab[version], {**apart, "replicas": 1}, tmp_path / "together.jsonl")
    held = tokens - tail
    assert find(analysis, "two").lost == {"tail": tail, "held_elsewhere": held}
    fix, hit = finding_of("held-elsewhere", analysis).fix, find(together, "two").hit_tokens
    assert fix.startswith("route requests that share a prefix to the same replica")
    assert ("no other replica would have hit more" in fix) == (hit == 0)
    assert ("another one would have hit" in fix) == (0 < hit < held)
