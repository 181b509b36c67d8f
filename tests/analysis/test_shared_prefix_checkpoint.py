"""vLLM's flag that keeps a Mamba state where a shared prefix was seen to end: hits, prediction and advice.

Prompts that share 5,000 tokens: attention has of them its last whole block at once, but for what speculation drops. A
Mamba group has states where chunks end and a block does; with the flag also where the second prompt was seen to part.
"""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import MTP
from vllm_versions import VERSIONS

from analyzers.analysis import analyze
from analyzers.experiments.configured import LOOKAHEAD, SHARED_PREFIX, version_tuple
from analyzers.experiments.engine import engine_of
from analyzers.fixes import CHECKPOINT_FLAG
from analyzers.model import Analysis, Capture
from analyzers.readers import open_capture
from analyzers.settings import read_settings
from otel_cache.errors import LabError

BLOCK, UNIT, SHARED = 1600, 16, 5000
MAMBA = {"kind": "mamba", "layers": 2, "block_size": BLOCK}
WITH = [version for version in VERSIONS if version_tuple(version) >= SHARED_PREFIX]
WITHOUT = [version for version in VERSIONS if version_tuple(version) < SHARED_PREFIX]


def siblings(on: bool, **engine: Any) -> dict[str, Any]:
    """Return four prompts that share their first tokens, one after the other."""
    prompts = [[{"segment": "shared", "tokens": SHARED}, {"segment": name, "tokens": 3000}] for name in "abcd"]
    return {
        "engine": {
            "groups": [MAMBA, {"kind": "full_attention", "block_size": BLOCK}],
            "prefix_match_unit": UNIT,
            "speculative": MTP,
            "num_gpu_blocks": 3000,
            "prefix_cache_retention_interval": 0,
            "enable_mamba_shared_prefix_checkpoint": on,
            **engine,
        },
        "requests": [{"id": prompt[1]["segment"], "prompt": prompt, "output_tokens": 1} for prompt in prompts],
    }


def run(lab: Labs, version: str, out: Path, on: bool, **engine: Any) -> tuple[list[int], Capture, Analysis]:
    """Return what vLLM hit, and what the analysis says of it."""
    said = lab[version].run(siblings(on, **engine), out)
    capture = open_capture([out])
    return list(said.hits), capture, analyze(capture)


@pytest.mark.vllm
@pytest.mark.parametrize("version", WITH)
def test_hits_prediction_and_advice(lab: Labs, tmp_path: Path, version: str) -> None:
    """On, the third prompt hits where the second parted; off, a block end below. Each is predicted to the token."""
    if version_tuple(version) < LOOKAHEAD:
        # Chunks end on Mamba's blocks, and attention drops one match unit: 4,784 and 3,200, as docs/versions.md says.
        attention, junction = BLOCK, SHARED // BLOCK * BLOCK - UNIT
        below = junction // BLOCK * BLOCK
    else:
        # Nothing is dropped, so attention's blocks end inside Mamba's where they are smaller; then chunks do as well.
        attention, junction, below = UNIT, SHARED // UNIT * UNIT, 0
    groups = [MAMBA, {"kind": "full_attention", "block_size": attention}]
    without = 0
    for on, expected in ((False, below), (True, junction)):
        hits, capture, analysis = run(lab, version, tmp_path / f"{on}.jsonl", on, groups=groups)
        assert hits == [0, 0, expected, expected]
        assert [each.predicted_hit_tokens for each in analysis.lookups] == hits
        assert not any(each.lost.get("unexplained") or each.lost.get("unknown") for each in analysis.lookups)
        assert read_settings(capture.lives[0].attributes, "the replica").shared_prefix_checkpoint is on
        assert engine_of(capture).enable_mamba_shared_prefix_checkpoint is on
        (finding,) = (each for each in analysis.findings if each.rule == "not-materialized")
        assert CHECKPOINT_FLAG in finding.fix
        assert ("is on" in finding.fix) is on
        # Of three lookups each lost the rest of the shared prefix, or with the flag the first of them alone.
        assert finding.tokens_lost == junction + 2 * (junction - expected)
        # What the flag does not give back is not counted, and there is nothing to do once it is on.
        assert finding.tokens_regained == (0 if on else 2 * (junction - expected))
        promised = 0 if on else finding.promise
        assert [tokens for tokens, _ in analysis.best_fixes] == ([promised] if promised else [])
        without = without or sum(hits) + promised
    assert sum(hits) == without


@pytest.mark.vllm
@pytest.mark.parametrize("version", WITH)
def test_where_it_has_no_effect(lab: Labs, tmp_path: Path, version: str) -> None:
    """Without a drafter vLLM takes the flag and does nothing; the resource says so, and nobody is told to set it."""
    hits, capture, analysis = run(lab, version, tmp_path / "spans.jsonl", True, speculative=None)
    assert read_settings(capture.lives[0].attributes, "the replica").shared_prefix_checkpoint is False
    assert [each.predicted_hit_tokens for each in analysis.lookups] == hits
    assert all(CHECKPOINT_FLAG not in each.fix for each in analysis.findings)


@pytest.mark.vllm
@pytest.mark.parametrize("version", WITHOUT)
def test_versions_without_it(lab: Labs, tmp_path: Path, version: str) -> None:
    """They are not asked for what they have not, and nobody is told to set it."""
    with pytest.raises(LabError, match="enable_mamba_shared_prefix_checkpoint: this vLLM has no such setting"):
        run(lab, version, tmp_path / "on.jsonl", True)
    _, capture, analysis = run(lab, version, tmp_path / "off.jsonl", False)
    assert read_settings(capture.lives[0].attributes, "the replica").shared_prefix_checkpoint is False
    assert all(CHECKPOINT_FLAG not in each.fix for each in analysis.findings)
