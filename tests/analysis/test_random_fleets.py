"""What must hold of any workload's capture: lost, shuffled, split and renamed evidence never makes up a cause."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.checks import check
from analysis.strategies import scenarios
from analysis.test_evidence import EVIDENCE, written
from analysis.test_properties import Spans, last_of_each_life, named, ordered, spans
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from otel_cache.errors import LabError

pytestmark = pytest.mark.vllm

EXAMPLES = 15
NAMES = {f"replica-{index}": name for index, name in enumerate(("z", "y", "x"))}


@pytest.mark.timeout(600)
def test_evidence_of_random_workloads(lab: Labs, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One run each: the losses partition the prompts and are vLLM's; then its spans, treated badly, are read again."""
    ran = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(scenarios(sizes=(16, 64, 160), pools=(2000, 60, 40)), st.data())
    def holds(scenario: dict[str, Any], data: st.DataObject) -> None:
        nonlocal ran
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                said = lab["0.32.0"].run(scenario, folder / "spans.jsonl")
            except LabError:
                return
            whole = analyze(open_capture([folder / "spans.jsonl"]))
            check(whole, said)
            everything = spans(folder / "spans.jsonl")
            _drop(everything, whole, data, folder)
            _spread(everything, whole, data, folder)
            _rename(whole, folder)
        ran += 1

    holds()
    assert ran > EXAMPLES // 2


def _drop(everything: Spans, whole: Analysis, data: st.DataObject, folder: Path) -> None:
    """Without some spans, but the last of each life, a token keeps its class or is `unknown`."""
    few = data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=6), label="dropped")
    dropped = set(few) - last_of_each_life(everything)
    rest = [pair for index, pair in enumerate(everything) if index not in dropped]
    if not any(span["name"] in EVIDENCE for _, span in rest):
        return
    analysis = analyze(open_capture([written(rest, folder / "cut.jsonl")]))
    full = {(one.replica, one.request_id): one.lost for one in whole.lookups}
    for one in analysis.lookups:
        assert one.hit_tokens + sum(one.lost.values()) == one.prompt_tokens
        before = full[one.replica, one.request_id]
        assert all(cls == "unknown" or tokens <= before.get(cls, 0) for cls, tokens in one.lost.items()), (one, before)
    evidence = [everything[index][1]["name"] in EVIDENCE for index in dropped]
    assert (analysis.coverage.missing_records > 0) == any(evidence)


def _spread(everything: Spans, whole: Analysis, data: st.DataObject, folder: Path) -> None:
    """In any order, over any number of files: the same analysis."""
    order = data.draw(st.permutations(range(len(everything))), label="order")
    parts = data.draw(st.integers(1, 4), label="files")
    (folder / "parts").mkdir()
    for part in range(parts):
        written([everything[i] for i in order[part::parts]], folder / "parts" / f"{part}.jsonl")
    assert analyze(open_capture([folder / "parts"])) == whole


def _rename(whole: Analysis, folder: Path) -> None:
    """Under other names, in another order, replicas have the same losses, hits and facts."""
    text = (folder / "spans.jsonl").read_text()
    for old, new in NAMES.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    (folder / "renamed.jsonl").write_text(text)
    renamed = analyze(open_capture([folder / "renamed.jsonl"]))
    back = {new: old for old, new in NAMES.items()}
    assert [named(each, {}) for each in ordered(whole)] == [named(each, back) for each in ordered(renamed)]
    assert whole.lost == renamed.lost
    assert whole.fleet == renamed.fleet
