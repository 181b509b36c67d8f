"""Each configuration validates and runs alone, as it stands; the same spans come out of it as the sidecar wrote."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import Labs

from .load import EXPORT_SECONDS, bulky, hybrid, report, spans_of, traced
from .programs import CONFIGS, Programs, fetch, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
NAMES = ("dev", "agent", "gateway", "record")


def validated(collector: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return what the collector says of a configuration."""
    return subprocess.run(
        [collector, "validate", "--config", CONFIGS / f"{name}.yaml"],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["dev", "agent", "gateway"])
def test_the_smallest_queue(backends: Mapping[str, Path], name: str) -> None:
    """It is that of the README: a byte less, or a unit behind it, and the collector does not start."""
    (row,) = re.findall(r"^.*`OTEL_CACHE_COLLECTOR_QUEUE_BYTES`.*$", (CONFIGS / "README.md").read_text(), re.MULTILINE)
    least = int(re.findall(r"less than (\d+)", row)[0])
    for size, starts in ((least, True), (least - 1, False), (f"{least}B", False)):
        done = validated(backends["collector"], name, OTEL_CACHE_COLLECTOR_QUEUE_BYTES=str(size))
        assert (done.returncode == 0) is starts, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_validates(backends: Mapping[str, Path], name: str) -> None:
    """With no variable set."""
    done = validated(backends["collector"], name)
    assert done.returncode == 0, done.stderr
    assert "deprecat" not in done.stderr.lower()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_dev_sends_every_span_to_jaeger_and_to_rotated_files(
    lab: Labs, programs: Programs, tmp_path: Path, protocol: str
) -> None:
    """What the collector's JSON lines say in several files, the sidecar's one file says: the same report."""
    jaeger = programs.jaeger()
    lines = tmp_path / "collector" / "spans.jsonl"
    collector = programs.collector(
        "dev.yaml",
        OTEL_CACHE_COLLECTOR_BACKEND=jaeger.grpc,
        OTEL_CACHE_COLLECTOR_FILE=str(lines),
        OTEL_CACHE_COLLECTOR_FILE_MEGABYTES="1",
    )
    endpoint = f"http://{collector.grpc if protocol == 'grpc' else collector.http}"
    with traced(lab["0.32.0"], tmp_path / "load", endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol) as load:
        load.run(hybrid("h"))
        load.run(bulky("b", 12))
        load.await_exported()
    spans = spans_of(load.out)
    files = sorted(lines.parent.iterdir())
    assert len(files) > 1, "the file was rotated"
    assert report(*files) == report(load.out)
    services = json.loads(fetch(f"{jaeger.query}/api/v3/services"))["services"]
    assert services == ["vllm"]
    wait_until(
        lambda: collector.internal("otelcol_exporter_sent_spans") >= 2 * len(spans), "Jaeger has all", EXPORT_SECONDS
    )
    assert collector.stop() == 0


def test_record_writes_protobuf_that_is_analyzed_like_the_sidecar_s_file(
    lab: Labs, programs: Programs, tmp_path: Path
) -> None:
    """Compressed with zstd, in several files."""
    file = tmp_path / "collector" / "spans.pb.zst"
    collector = programs.collector(
        "record.yaml", OTEL_CACHE_COLLECTOR_FILE=str(file), OTEL_CACHE_COLLECTOR_FILE_MEGABYTES="1"
    )
    with traced(lab["0.32.0"], tmp_path / "load", f"http://{collector.grpc}") as load:
        load.run(hybrid("h"))
        load.run(bulky("b", 70))
        load.await_exported()
    assert collector.stop() == 0
    files = sorted(file.parent.iterdir())
    assert len(files) > 1, "the file was rotated"
    assert sum(path.stat().st_size for path in files) < load.out.stat().st_size / 2
    assert report(*files) == report(load.out)
