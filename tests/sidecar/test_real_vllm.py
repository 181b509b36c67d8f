"""vLLM's own scheduler to a real OTLP server: what a collector gets is what the file has."""

from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import shipped
from vllm_versions import VERSIONS

from otel_cache.semconv import names

from .support import read_lines, read_requests
from .test_export import Collector, collector, key

__all__ = ["collector"]


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_collector_gets_what_the_file_has(
    lab: Labs, version: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, parents, names, times, attributes, links and resource, span for span."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
    out = tmp_path / "spans.jsonl"
    lab[version].run(shipped("model_case"), out)
    written = sorted(read_lines(out), key=key)
    assert sorted(read_requests(collector.requests), key=key) == written
    assert [span.name for span in written].count(names.LOOKUP) == 4
    assert written[0].resource[names.VLLM_VERSION] == version
