"""The formula of docs/volume.md, and its bytes per span, against runs of vLLM's own scheduler."""

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from conftest import Labs
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache.semconv import names

from .markdown import read, rows

DENSE = {"groups": [{"kind": "full_attention"}], "block_size": 16}
HYBRID = {"groups": [{"kind": "mamba", "layers": 3}, {"kind": "full_attention"}], "block_size": 160}


def run(labs: Labs, engine: dict[str, Any], path: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Send ten prompts of 1,000 tokens one after the other; return all spans, and what vLLM said of the requests."""
    engine = {**engine, "num_gpu_blocks": 4_000, "max_num_batched_tokens": 400}
    requests = [
        {"id": f"r{number}", "prompt": [{"segment": f"s{number}", "tokens": 1_000}], "output_tokens": 64}
        for number in range(10)
    ]
    results = labs["0.32.0"].run(parse_scenario({"engine": engine, "requests": requests}), path).requests
    lines = map(json.loads, path.read_text().splitlines())
    spans = [
        span
        for line in lines
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return spans, results


def documented() -> dict[str, tuple[float, float]]:
    """Return bytes per span, and fingerprint bytes per block, by the span's name."""
    found = {}
    for cells in rows(read("docs/volume.md")):
        if len(cells) == 4 and cells[0].startswith("`vllm."):
            per_block = float(cells[3].split()[0]) if cells[3] else 0.0
            found[cells[0].strip("`")] = (float(cells[2].replace(",", "")), per_block)
    return found


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("engine", "lookups", "decode_stores"),
    # The answer's 63 computed tokens fill blocks at 1,008, 1,024, 1,040 and 1,056; of 160, none.
    [(DENSE, 1, 4), (HYBRID, 2, 0)],
    ids=["dense", "hybrid"],
)
def test_formula(lab: Labs, tmp_path: Path, engine: dict[str, Any], lookups: int, decode_stores: int) -> None:
    """A run's spans are those that the formula gives for its steps, chunks and blocks, and as large as it says."""
    spans, results = run(lab, engine, tmp_path / "spans.jsonl")
    count = Counter(span["name"] for span in spans)
    steps = sum(len(result.chunks) for result in results)  # one request at a time: each chunk is a step
    block = engine["block_size"]
    filling = [
        [end for chunk, end in zip(result.chunks, ends(result.chunks), strict=True) if end % block < chunk]
        for result in results
    ]
    assert [sum(end > 1_000 for end in each) for each in filling] == [decode_stores] * 10
    # Each request is a span, a lookup with its group lookups, and a store for each step that registered something.
    stores = sum(map(len, filling))
    assert count[names.STEP] == steps
    assert count[names.STORE] == stores
    assert len(spans) == steps + 10 * (2 + lookups) + stores
    blocks = 1_000 // block
    for name, (size, per_block) in documented().items():
        sizes = [wire_bytes(span) for span in spans if span["name"] == name]
        if sizes:
            assert mean(sizes) == pytest.approx(size + per_block * blocks, rel=0.3), name


def ends(chunks: list[int]) -> list[int]:
    """Return where each chunk ends, in tokens."""
    return [sum(chunks[: number + 1]) for number in range(len(chunks))]


def wire_bytes(span: dict[str, Any]) -> int:
    """Return the size of a span as OTLP protobuf."""
    size: int = ParseDict(span, Span()).ByteSize()
    return size


def test_example() -> None:
    """The page's own arithmetic."""
    page = read("docs/volume.md")
    whole = 40 * 86_400 * (30 * 5 + 2 * (2 + 2 + 3 + 0.3 + 3))
    thinned = 40 * 86_400 * ((6 + 24 / 100) * 5 + 2 * 10.3)
    assert f"{whole / 1e6:.0f} million" in page
    assert f"{thinned / 1e6:.0f} million" in page
    sizes = documented()
    a_second = 30 * sizes[names.STEP][0] + 30 * 4 * sizes[names.EXECUTE][0] + 2 * sum(
        often * sizes[name][0]
        for name, often in (
            (names.REQUEST, 1), (names.LOOKUP, 1), (names.GROUP_LOOKUP, 2), (names.STORE, 3.3), (names.EVICT, 3),
        )
    )  # fmt: skip
    assert f"{40 * 86_400 * a_second / 1e9:.0f} GB" in page
