"""Any scenario on any version: every hit is predicted from the evidence, and instrumenting vLLM changes nothing."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from hypothesis import HealthCheck, given, settings
from vllm_versions import VERSIONS

from analysis.checks import check
from analysis.strategies import scenarios
from analyzers.analysis import analyze
from analyzers.readers import open_capture
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

EXAMPLES = 40
REFUSALS = ("at least two attention groups", "too small", "refuses", "vLLM failed on the scenario")
"""What vLLM itself does not run: a layout or a connector that a version lacks, a prompt that the pool cannot hold."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_prediction(lab: Labs, bare_lab: Labs, version: str) -> None:
    """What vLLM says of each request is the same with and without the hooks, and is what the evidence predicts."""
    ran = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(scenarios(features=True))
    def holds(scenario: dict[str, Any]) -> None:
        nonlocal ran
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "spans.jsonl"
            try:
                bare = bare_lab[version].run(scenario)
            except LabError as error:
                assert any(word in str(error) for word in REFUSALS), error
                return
            said = lab[version].run(scenario, out)
            assert said == bare
            check(analyze(open_capture([out])), said)
            ran += 1

    holds()
    assert ran > EXAMPLES // 2
