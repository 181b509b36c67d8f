"""vLLM's own scheduler to a real OTLP server: what a collector gets is what the file has."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from lab.cases import shipped
from vllm_versions import VERSIONS

from analyzers.analysis import analyze
from analyzers.model import UNKNOWN
from analyzers.readers import open_capture
from otel_cache.semconv import names

from .collectors import Collector, write_lines
from .support import Read, named, read_lines

pytestmark = pytest.mark.vllm


def span_id(span: Read) -> str:
    """Return what spans are sorted by."""
    return span.span_id


@pytest.mark.parametrize("version", VERSIONS)
def test_the_collector_gets_what_the_file_has(
    lab: Labs, version: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, parents, names, times, attributes, links and resource, span for span."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
    out = tmp_path / "spans.jsonl"
    lab[version].run(shipped("model_case"), out)
    written = sorted(read_lines(out), key=span_id)
    assert sorted(collector.spans, key=span_id) == written
    assert [span.name for span in written].count(names.LOOKUP) == 4
    assert written[0].resource[names.VLLM_VERSION] == version


def exported(lab: Labs, scenario: dict[str, Any], folder: Path, collector: Collector) -> tuple[Path, Path]:
    """Run a scenario on 0.28; return what the sidecar wrote, and what it exported, as files."""
    out, sent = folder / "spans.jsonl", folder / "exported.jsonl"
    lab["0.28.0"].run(scenario, out)
    write_lines(collector.requests, sent)
    return out, sent


@pytest.fixture
def thin(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export what a tracing back end needs, and no step that is ordinary."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_EXPORT", "traces")
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_STEP_SHARE", "0")


@pytest.mark.usefixtures("thin")
def test_thinned_spans_of_large_blocks_analyse_like_the_file(lab: Labs, tmp_path: Path, collector: Collector) -> None:
    """The model case, blocks of 1,600: the same losses, from fewer spans."""
    scenario = shipped("model_case")
    for request in scenario["requests"]:
        request["output_tokens"] = 40
    out, sent = exported(lab, scenario, tmp_path, collector)
    whole, thinned = (analyze(open_capture([path])) for path in (out, sent))
    assert [(each.request_id, each.hit_tokens, each.lost) for each in thinned.lookups] == [
        (each.request_id, each.hit_tokens, each.lost) for each in whole.lookups
    ]
    assert thinned.coverage.missing_records == 0
    steps, kept = named(read_lines(out), names.STEP), named(collector.spans, names.STEP)
    assert len(kept) < len(steps) / 2
    prefills = {span[names.STEP_INDEX] for span in steps if span[names.STEP_PREFILL_TOKENS]}
    assert prefills <= {span[names.STEP_INDEX] for span in kept}


@pytest.mark.usefixtures("thin")
def test_thinned_spans_of_small_blocks_are_uncertain_never_wrong(
    lab: Labs, tmp_path: Path, collector: Collector
) -> None:
    """Blocks of 16: what the coarse grid does not tell is unknown; no class gets more than it has by the file."""
    groups = [{"kind": "full_attention"}]
    requests = [
        {"id": name, "prompt": [{"segment": segment, "tokens": 2000}, {"segment": name, "tokens": 300}]}
        for name, segment in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "two"), ("e", "one"))
    ]
    engine = {"groups": groups, "block_size": 16, "num_gpu_blocks": 260}
    out, sent = exported(lab, {"engine": engine, "requests": requests}, tmp_path, collector)
    whole, thinned = (analyze(open_capture([path])) for path in (out, sent))
    for one, other in zip(whole.lookups, thinned.lookups, strict=True):
        assert (one.request_id, one.hit_tokens) == (other.request_id, other.hit_tokens)
        known = {cause: tokens for cause, tokens in other.lost.items() if cause != UNKNOWN}
        assert all(tokens <= one.lost.get(cause, 0) for cause, tokens in known.items()), (one.lost, other.lost)
        assert sum(other.lost.values()) == sum(one.lost.values())
    assert any(one.lost.get("evicted") for one in whole.lookups)
