"""What one of a collector's exporters cannot take costs the others nothing: no span twice, and no count twice."""

import json
import urllib.request
from importlib.resources import files
from pathlib import Path

from deploy.manifests import RECORDER
from sidecar.collectors import Collector as Sink

from .gateways import TOKEN, certify
from .load import report
from .programs import HOST, Collector, Programs, fetch, free_port, sample_values, wait_until

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))
DATA = json.loads(EXAMPLE.read_text())
for resource in DATA["resourceSpans"]:
    # As the agent would add it: what is sent is then what arrives.
    resource["resource"]["attributes"].append({"key": "deployment.environment.name", "value": {"stringValue": "test"}})
LINE = json.dumps(DATA)
SPANS = [span for group in DATA["resourceSpans"] for scope in group["scopeSpans"] for span in scope["spans"]]
EVIDENCE = sum(span["name"] in ("vllm.kv_cache.lookup", "vllm.kv_cache.store", "vllm.kv_cache.evict") for span in SPANS)
"""How many spans of the example the metric `otel_cache.evidence_spans` counts."""
TIMES = 60
"""As often the example is sent: its bytes are then several times what the queue below holds."""
LITTLE = "600000"


def send(http: str, times: int = 1) -> None:
    """Send the example's spans; raises where the collector does not take them."""
    for _ in range(times):
        request = urllib.request.Request(
            f"http://{http}/v1/traces", data=LINE.encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200


def counted(collector: Collector) -> float:
    """Return how many spans of the evidence its metrics say that it has seen."""
    text = fetch(f"http://{collector.spanmetrics}/metrics")
    return sum(sample_values(text, "otel_cache_evidence_spans_total"))


def test_without_jaeger_file_and_metrics_have_everything_once(programs: Programs, tmp_path: Path) -> None:
    """Jaeger never comes, and the queue for it is full."""
    file = tmp_path / "captures" / "spans.jsonl"
    collector = programs.collector(
        "dev.yaml",
        OTEL_CACHE_COLLECTOR_BACKEND=f"{HOST}:{free_port()}",
        OTEL_CACHE_COLLECTOR_FILE=str(file),
        OTEL_CACHE_COLLECTOR_QUEUE_BYTES=LITTLE,
    )
    send(collector.http, TIMES)
    wait_until(lambda: collector.internal("otelcol_exporter_enqueue_failed_spans") > 0, "Jaeger's queue is full")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    spans = [
        span
        for each in written
        for group in each["resourceSpans"]
        for scope in group["scopeSpans"]
        for span in scope["spans"]
    ]
    assert len(spans) == TIMES * len(SPANS)
    wait_until(lambda: counted(collector) >= TIMES * EVIDENCE, "all counted")
    assert counted(collector) == TIMES * EVIDENCE
    assert collector.internal("otelcol_receiver_refused_spans") == 0


def test_without_a_back_end_a_gateway_counts_everything_once(programs: Programs, tmp_path: Path) -> None:
    """The queue for it is full: what was decided about does not go back to the agents."""
    certificate, secrets = certify(tmp_path)
    gateway = programs.collector(
        "gateway.yaml",
        **secrets,
        OTEL_CACHE_COLLECTOR_BACKEND=f"{HOST}:{free_port()}",
        OTEL_CACHE_COLLECTOR_SHARE="100",
        OTEL_CACHE_COLLECTOR_DECISION_WAIT="1s",
        OTEL_CACHE_COLLECTOR_QUEUE_BYTES=LITTLE,
    )
    agent = programs.collector(
        "agent.yaml",
        OTEL_CACHE_COLLECTOR_GATEWAY_HOST=HOST,
        OTEL_CACHE_COLLECTOR_GATEWAY_PORT=gateway.grpc.rpartition(":")[2],
        OTEL_CACHE_COLLECTOR_GATEWAY_CA=str(certificate),
        OTEL_CACHE_COLLECTOR_TOKEN=TOKEN,
    )
    send(agent.http, TIMES)
    wait_until(lambda: gateway.internal("otelcol_exporter_enqueue_failed_spans") > 0, "the back end's queue is full")
    wait_until(lambda: counted(gateway) >= TIMES * EVIDENCE, "all counted")
    assert counted(gateway) == TIMES * EVIDENCE
    assert gateway.internal("otelcol_receiver_refused_spans") == 0


def test_the_agents_feed_recorder_and_gateways(programs: Programs, tmp_path: Path) -> None:
    """By TLS and with a token to both; what the recorder writes can be analyzed while it runs, and is the evidence."""
    certificate, secrets = certify(tmp_path)
    file = tmp_path / "captures" / "spans.pb.zst"
    recorder = programs.collector(
        "record.yaml", RECORDER / "collector" / "recorder.yaml", OTEL_CACHE_COLLECTOR_FILE=str(file), **secrets
    )
    sink = Sink()
    sink.start()
    try:
        gateway = programs.collector("gateway.yaml", **secrets, OTEL_CACHE_COLLECTOR_BACKEND=f"localhost:{sink.port}")
        agent = programs.collector(
            "agent.yaml",
            RECORDER / "collector" / "agent.yaml",
            OTEL_CACHE_COLLECTOR_RECORDER=recorder.grpc,
            OTEL_CACHE_COLLECTOR_GATEWAY_HOST=HOST,
            OTEL_CACHE_COLLECTOR_GATEWAY_PORT=gateway.grpc.rpartition(":")[2],
            OTEL_CACHE_COLLECTOR_GATEWAY_CA=str(certificate),
            OTEL_CACHE_COLLECTOR_TOKEN=TOKEN,
        )
        send(agent.http)
        for name, there in (("the recorder", recorder), ("the gateway", gateway)):
            wait_until(
                lambda there=there: there.internal("otelcol_receiver_accepted_spans") >= len(SPANS), f"{name} has all"
            )
        (tmp_path / "sent.jsonl").write_text(LINE)
        assert report(file) == report(tmp_path / "sent.jsonl")
        assert gateway.internal("otelcol_receiver_accepted_spans") == len(SPANS)
    finally:
        sink.stop()


def test_a_recorder_that_is_away_costs_the_gateways_nothing(programs: Programs, tmp_path: Path) -> None:
    """The queue for it is full: the gateway has every span once."""
    sink = Sink()
    sink.start()
    try:
        agent = programs.collector(
            "agent.yaml",
            RECORDER / "collector" / "agent.yaml",
            OTEL_CACHE_COLLECTOR_RECORDER=f"{HOST}:{free_port()}",
            OTEL_CACHE_COLLECTOR_GATEWAY_HOST=HOST,
            OTEL_CACHE_COLLECTOR_GATEWAY_PORT=str(sink.port),
            OTEL_CACHE_COLLECTOR_GATEWAY_INSECURE="true",
            OTEL_CACHE_COLLECTOR_QUEUE_BYTES=LITTLE,
        )
        for sent in range(10, TIMES + 1, 10):
            send(agent.http, 10)
            # So that the gateways' own queue, which is as small, never is what refuses.
            wait_until(lambda sent=sent: len(sink.spans) >= sent * len(SPANS), "the gateway has them")
        assert agent.internal("otelcol_exporter_enqueue_failed_spans") > 0
        assert len(sink.spans) == TIMES * len(SPANS)
    finally:
        sink.stop()
