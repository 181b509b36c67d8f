"""The analyzer's ladder against one by brute force, on random scenarios."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from hypothesis import HealthCheck, given, settings
from vllm_versions import VERSIONS

from analysis.checks import check
from analysis.reference import reference
from analysis.strategies import scenarios
from analyzers.analysis import analyze
from analyzers.readers import open_capture
from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

EXAMPLES = 40


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_brute_force_ladder_agrees(lab: Labs, version: str) -> None:
    """Class for class and request for request, with evictions, keys, overlap and up to three replicas."""
    compared: set[str] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(scenarios(layouts=("full", "hybrid"), partial=False, sizes=(16, 64), pools=(2000, 40, 24)))
    def holds(scenario: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "spans.jsonl"
            try:
                said = lab[version].run(scenario, out)
            except LabError:
                return
            capture = open_capture([out])
        analysis = analyze(capture)
        check(analysis, said)
        expected = reference(capture, parse_scenario(scenario))
        for lookup in analysis.lookups:
            assert dict(lookup.lost) == expected[lookup.request_id], lookup
            compared.update(lookup.lost)

    holds()
    assert compared >= {"cold", "tail", "key_difference", "evicted", "held_elsewhere"}
