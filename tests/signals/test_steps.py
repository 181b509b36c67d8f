"""`vllm.scheduler.step` on vLLM's own scheduler: each step that scheduled something, against what the lab saw."""

from collections import Counter
from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import MTP, request, scenario
from vllm_versions import VERSIONS

from otel_cache.semconv import names
from signals.spans import traced

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("speculative", [None, MTP | {"accepted_tokens": 1}])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_steps(lab: Labs, tmp_path: Path, version: str, asynchronous: bool, speculative: object) -> None:
    """Tokens of all steps are the chunks of all requests; prefill is what the prompts took."""
    requests = [
        request("a", ("a", 1500), output_tokens=20),
        request("b", ("b", 1500), output_tokens=20, **{"with": "a"}),
        request("c", ("a", 1500), output_tokens=20),
    ]
    engine = {"max_num_batched_tokens": 512, "speculative": speculative, "async_scheduling": asynchronous}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    steps = run.named(names.STEP)
    total = sum(step[names.STEP_PREFILL_TOKENS] + step[names.STEP_DECODE_TOKENS] for step in steps)
    assert total == sum(sum(sent.chunks) for sent in run.said.requests)
    assert sum(step[names.STEP_SCHEDULED_REQUESTS] for step in steps) == sum(
        len(sent.chunks) for sent in run.said.requests
    )
    # A prefill's last step computes the prompt's end and nothing else.
    assert sum(step[names.STEP_PREFILL_TOKENS] for step in steps) == sum(
        sent.prompt_tokens - sent.hit_tokens for sent in run.said.requests
    )
    indices = [step[names.STEP_INDEX] for step in steps]
    assert indices == sorted(set(indices))
    assert max(indices) <= run.said.replicas[0].steps
    for step in steps:
        assert step.parent == ""
        assert 0 < step[names.STEP_POOL_USAGE] <= 1
        assert step[names.STEP_RUNNING_REQUESTS] <= 2
        assert 0 < step[names.STEP_SCHEDULE_DURATION] < 10
        assert 0 <= step[names.STEP_EXECUTE_DURATION] < 10
        assert step[names.STEP_SCHEDULE_DURATION] * 1e9 <= step.end - step.start
    linked = Counter(run.by_id(link)[names.REQUEST_ID] for step in steps for link, _ in step.links)
    assert set(linked) == {"a", "b", "c"}


@pytest.mark.parametrize("version", VERSIONS)
def test_without_workers_nothing_is_executed(lab: Labs, tmp_path: Path, version: str) -> None:
    """The lab has no worker: there is no span of one."""
    run = traced(lab[version], scenario([request("a", ("a", 100))]), tmp_path / "s.jsonl")
    assert not run.named(names.EXECUTE)
