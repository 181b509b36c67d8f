"""What missing evidence does: it only ever moves tokens to `unknown`."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from otel_cache.semconv import names

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))
EVIDENCE = {names.LOOKUP, names.STORE, names.EVICT}


def spans() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (resource, span) of the example capture."""
    return [
        (resource["resource"], span)
        for line in EXAMPLE.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


SPANS = spans()


def written(kept: list[tuple[dict[str, Any], dict[str, Any]]], path: Path) -> Path:
    """Write spans as OTLP JSON lines, one a line."""
    lines = [
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "otel_cache"}, "spans": [span]}]}]}
        for resource, span in kept
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def example() -> Analysis:
    """Return the analysis of the whole example."""
    return analyze(open_capture([EXAMPLE]))


def test_the_example_shows_the_model_case() -> None:
    """What ships is what the README shows."""
    assert [lookup.hit_tokens for lookup in example().lookups] == [0, 0, 9600, 9600]
    assert example().lost == {"cold": 11910, "tail": 2130, "speculative_drop": 4800, "shifted_boundary": 9600}


@given(kept=st.lists(st.booleans(), min_size=len(SPANS), max_size=len(SPANS)))
@settings(max_examples=150, deadline=None)
def test_lost_spans_only_move_tokens_to_unknown(tmp_path_factory: pytest.TempPathFactory, kept: list[bool]) -> None:
    """Drop any spans: each remaining lookup has the class it had, or `unknown`."""
    rest = [pair for pair, keep in zip(SPANS, kept, strict=True) if keep]
    if not any(span["name"] == names.LOOKUP for _, span in rest):
        return
    whole = {lookup.request_id: lookup for lookup in example().lookups}
    analysis = analyze(open_capture([written(rest, tmp_path_factory.mktemp("cut") / "spans.jsonl")]))
    for lookup in analysis.lookups:
        full = whole[lookup.request_id]
        assert lookup.hit_tokens + sum(lookup.lost.values()) == lookup.prompt_tokens
        for cls, tokens in lookup.lost.items():
            assert cls == "unknown" or tokens == full.lost[cls]
    numbers = [number for number, (_, span) in zip(kept, SPANS, strict=True) if span["name"] in EVIDENCE]
    if not all(numbers) and numbers[-1]:
        assert analysis.coverage.missing_records > 0


@pytest.mark.parametrize("index", [i for i, (_, span) in enumerate(SPANS) if span["name"] in EVIDENCE])
def test_each_lost_span_is_counted(tmp_path: Path, index: int) -> None:
    """One lost span of the evidence: one missing record, unless it was the last of all, which nothing tells."""
    analysis = analyze(open_capture([written(SPANS[:index] + SPANS[index + 1 :], tmp_path / "spans.jsonl")]))
    last = max(i for i, (_, span) in enumerate(SPANS) if span["name"] in EVIDENCE)
    assert analysis.coverage.missing_records == (0 if index == last else 1)


@given(order=st.permutations(range(len(SPANS))), parts=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_order_and_files_do_not_matter(tmp_path_factory: pytest.TempPathFactory, order: list[int], parts: int) -> None:
    """Shuffle the lines and spread them over files: the same analysis."""
    folder = tmp_path_factory.mktemp("parts")
    for part in range(parts):
        written([SPANS[i] for i in order[part::parts]], folder / f"{part}.jsonl")
    analysis = analyze(open_capture([folder]))
    whole = example()
    assert (analysis.lookups, analysis.sequences, analysis.findings, analysis.lost) == (
        whole.lookups,
        whole.sequences,
        whole.findings,
        whole.lost,
    )
