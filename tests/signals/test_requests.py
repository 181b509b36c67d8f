"""`vllm.engine.request` on vLLM's own scheduler: every attribute against what the lab saw of the request."""

from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import MTP, request, scenario
from vllm_versions import VERSIONS

from otel_cache.semconv import names
from signals.spans import Run, traced

pytestmark = pytest.mark.vllm

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def check(run: Run) -> None:
    """Hold every request's span against vLLM's own account."""
    for said in run.said.requests:
        span = run.one(names.REQUEST, said.request_id)
        assert span[names.REQUEST_PROMPT_TOKENS] == said.prompt_tokens
        assert span[names.REQUEST_OUTPUT_TOKENS] == said.output_tokens
        assert span[names.REQUEST_FINISH_REASON] == said.finish_reason
        assert span[names.REQUEST_PREEMPTIONS] == said.preemptions
        assert span[names.USAGE_INPUT_TOKENS] == said.prompt_tokens
        assert span[names.USAGE_OUTPUT_TOKENS] == said.output_tokens
        assert (span.get(names.REQUEST_DRAFTED_TOKENS) or 0) == said.drafted
        assert (span.get(names.REQUEST_ACCEPTED_TOKENS) or 0) == said.accepted


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_how_requests_end(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """By length, by a stop token, by the client, in the midst of a prefill too, and while it waits."""
    requests = [
        request("length", ("a", 1000), output_tokens=7),
        request("stop", ("a", 1000), output_tokens=50, stop_after=10),
        request("abort", ("b", 1000), output_tokens=50, abort_after=10),
        request("early", ("c", 3000), output_tokens=50, abort_after=2),
        request("waits", ("d", 1500), output_tokens=50, abort_after=5, **{"with": "early"}),
    ]
    engine = {"max_num_batched_tokens": 1024, "num_gpu_blocks": 240, "async_scheduling": asynchronous}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    assert [said.finish_reason for said in run.said.requests] == ["length", "stop", "abort", "abort", "abort"]
    check(run)
    # What ended before its prefill was over has no first token.
    assert run.one(names.REQUEST, "early").get(names.REQUEST_TIME_TO_FIRST_TOKEN) is None


@pytest.mark.parametrize("accepted", [0, 1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_drafts(lab: Labs, tmp_path: Path, version: str, asynchronous: bool, accepted: int) -> None:
    """Drafted and accepted tokens, cut short by a stop token and by an abort: as the lab and vLLM count them."""
    requests = [
        request("a", ("a", 300), output_tokens=31),
        request("b", ("b", 300), output_tokens=40, stop_after=11, **{"with": "a"}),
        request("c", ("c", 300), output_tokens=40, abort_after=9, **{"with": "a"}),
    ]
    engine = {"speculative": MTP | {"accepted_tokens": accepted}, "async_scheduling": asynchronous}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    check(run)
    (replica,) = run.said.replicas
    spans = run.named(names.REQUEST)
    assert sum(span[names.REQUEST_DRAFTED_TOKENS] for span in spans) == replica.drafted > 0
    assert sum(span[names.REQUEST_ACCEPTED_TOKENS] for span in spans) == replica.accepted
    assert (replica.accepted > 0) == (accepted > 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_speculation_there_are_no_drafts(lab: Labs, tmp_path: Path, version: str) -> None:
    """The attributes are absent, not 0."""
    run = traced(lab[version], scenario([request("a", ("a", 300))]), tmp_path / "s.jsonl")
    assert run.one(names.REQUEST).get(names.REQUEST_DRAFTED_TOKENS) is None
    assert run.one(names.REQUEST).get(names.REQUEST_ACCEPTED_TOKENS) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_ids(lab: Labs, tmp_path: Path, version: str) -> None:
    """The scheduler's id, and the API's where vLLM made the one of the other."""
    requests = [
        request("cmpl-7d0e-0-1a2b3c4d", ("a", 100)),
        request("chat-1a2b3c4d", ("a", 100)),
        request("plain", ("a", 100)),
        request("upper-1A2B3C4D", ("a", 100)),
    ]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    found = {span[names.REQUEST_ID]: span.get(names.REQUEST_EXTERNAL_ID) for span in run.named(names.REQUEST)}
    assert found == {
        "cmpl-7d0e-0-1a2b3c4d": "cmpl-7d0e-0",
        "chat-1a2b3c4d": "chat",
        "plain": None,
        "upper-1A2B3C4D": None,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_callers_trace(lab: Labs, tmp_path: Path, version: str) -> None:
    """Request, lookup and store join the caller's trace; a request without a caller begins its own."""
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "a=b"}
    requests = [request("called", ("a", 100), trace_headers=headers), request("alone", ("b", 100))]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    called, alone = (run.one(names.REQUEST, name) for name in ("called", "alone"))
    assert (called.trace, called.parent) == (TRACE, CALLER)
    assert alone.trace != TRACE
    assert alone.parent == ""
    for span in (called, alone):
        name = span[names.REQUEST_ID]
        for child in [run.one(names.LOOKUP, name), *run.named(names.STORE, name)]:
            assert (child.trace, child.parent) == (span.trace, span.id)


@pytest.mark.parametrize("version", VERSIONS)
def test_times(lab: Labs, tmp_path: Path, version: str) -> None:
    """Queue time and time to first token lie in the request's span, and end with the steps they are measured by."""
    requests = [
        request("long", ("a", 800), output_tokens=100),
        request("waits", ("b", 1500), delay=2, **{"with": "long"}),
    ]
    engine = {"num_gpu_blocks": 100, "max_num_batched_tokens": 1024}
    run = traced(lab[version], scenario(requests, **engine), tmp_path / "s.jsonl")
    steps = {span[names.STEP_INDEX]: span for span in run.named(names.STEP)}
    # The first calls of schedule are 1, 2, ...; "waits" arrived before the third.
    first = {"long": 1, "waits": 2 + run.said.request("waits").schedule_calls}
    for name, index in first.items():
        span = run.one(names.REQUEST, name)
        queued, first_token = span[names.REQUEST_QUEUE_DURATION], span[names.REQUEST_TIME_TO_FIRST_TOKEN]
        assert span.start <= steps[index].start <= span.end
        # The step is scheduled somewhere between its start and the end of schedule().
        scheduled = steps[index].start / 1e9 + steps[index][names.STEP_SCHEDULE_DURATION]
        assert steps[index].start - 1e6 <= span.start + queued * 1e9 <= scheduled * 1e9 + 1e6
        # The prefill of 800 tokens is one step, that of 1,500 two.
        last = steps[index + len(run.said.request(name).chunks) - {"long": 100, "waits": 3}[name]]
        assert abs(span.start + first_token * 1e9 - last.end) < 50e6
        assert 0 <= queued <= first_token <= (span.end - span.start) / 1e9
    assert run.one(names.REQUEST, "waits")[names.REQUEST_QUEUE_DURATION] > 0


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in ("0.26.0", "0.27.1")])
def test_session(lab: Labs, tmp_path: Path, version: str) -> None:
    """Requests of one session share its digest; vLLM's requests have sessions since 0.28."""
    requests = [
        request("one", ("a", 100), session_id="s"),
        request("two", ("b", 100), session_id="s"),
        request("other", ("a", 100), session_id="t"),
        request("none", ("a", 100)),
    ]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    digests = [
        run.one(names.REQUEST, name).get(names.REQUEST_SESSION_DIGEST) for name in ("one", "two", "other", "none")
    ]
    assert digests[0] == digests[1]
    assert digests[0] and digests[2] and digests[0] != digests[2]
    assert digests[3] is None


@pytest.mark.parametrize("version", VERSIONS)
def test_reused_tokens(lab: Labs, tmp_path: Path, version: str) -> None:
    """Cache reads by OpenTelemetry's name: the hit, and what a connector brought is no hit of the cache's."""
    requests = [request("a", ("a", 1000)), request("again", ("a", 1000))]
    run = traced(lab[version], scenario(requests), tmp_path / "s.jsonl")
    for said in run.said.requests:
        span = run.one(names.REQUEST, said.request_id)
        assert span[names.REQUEST_HIT_TOKENS] == said.local_tokens
        assert span[names.USAGE_CACHE_READ_TOKENS] == said.local_tokens + said.external_tokens
        lookup = run.one(names.LOOKUP, said.request_id)
        assert span[names.LOOKUP_LIMITED_BY] == lookup[names.LOOKUP_LIMITED_BY]
