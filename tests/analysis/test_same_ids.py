"""Requests that have one id: each is explained as under an id of its own, on one replica or on two."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import HYBRID, request, scenario

from analysis.checks import analyzed
from analyzers.analysis import analyze
from analyzers.model import Analysis, LookupResult
from analyzers.readers import open_capture
from analyzers.story import stories

pytestmark = pytest.mark.vllm

NAMES = {"first": "same", "elsewhere": "same", "second": "same", "third": "same", "other": "other"}
AS = {"second": "same (2)", "third": "same (3)"}


def renamed(result: LookupResult) -> LookupResult:
    """Return a result without the sentences and names in which ids stand, but its own."""
    name = {**NAMES, **AS}[result.request_id]
    producer = result.producer and {**NAMES, **AS}[result.producer]
    return replace(result, request_id=name, family="", cause="", facts=(), producer=producer)


def bare(analysis: Analysis) -> list[LookupResult]:
    """Return the results without what `renamed` leaves out."""
    return [replace(result, family="", cause="", facts=()) for result in analysis.lookups]


def test_one_id_several_times(lab: Labs, tmp_path: Path) -> None:
    """The first two run on two replicas; the others come later, with longer prompts, and push blocks out."""
    sizes = {
        "first": (3300, 0),
        "elsewhere": (3300, 500),
        "second": (3300, 0),
        "other": (900, 4000),
        "third": (3300, 9),
    }
    requests = [
        request(name, ("doc", shared), (name, own)) if own else request(name, ("doc", shared))
        for name, (shared, own) in sizes.items()
    ]
    for index, each in enumerate(requests):
        each["replica"] = int(index == 1)
    engine = {"block_size": 64, "num_gpu_blocks": 120, "max_num_batched_tokens": 512}
    case = scenario(requests, HYBRID, replicas=2, **engine)
    apart = analyzed(lab["0.32.0"], case, tmp_path / "apart.jsonl")
    assert "evicted" in apart.lost or "checkpoint_evicted" in apart.lost
    text = (tmp_path / "apart.jsonl").read_text()
    for old, new in NAMES.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    (tmp_path / "same.jsonl").write_text(text)
    capture = open_capture([tmp_path / "same.jsonl"])
    same = analyze(capture)
    assert bare(same) == [renamed(result) for result in apart.lookups]
    assert (same.prompt_tokens, same.lost) == (apart.prompt_tokens, apart.lost)
    assert [finding.rule for finding in same.findings] == [finding.rule for finding in apart.findings]
    told = stories(capture, "same")
    assert [(story.result.request_id, story.result.replica) for story in told] == [
        ("same", "replica-0"), ("same", "replica-1"), ("same (2)", "replica-0"), ("same (3)", "replica-0"),
    ]  # fmt: skip
    (third,) = stories(capture, "same (3)")
    assert third.result == told[3].result
