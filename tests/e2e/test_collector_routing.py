"""An agent in front of two gateways: by TLS, with a token, and each trace as a whole to one of them."""

from pathlib import Path

import pytest
import yaml
from conftest import Labs
from sidecar.collectors import Collector as Sink

from .gateways import TOKEN, certify
from .load import EXPORT_SECONDS, hybrid, ids, spans_of, traced
from .programs import CONFIGS, Programs, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]


def test_a_trace_goes_to_one_gateway_as_a_whole(lab: Labs, programs: Programs, tmp_path: Path) -> None:
    """The agent is told of both by their addresses: there is no name here that has two."""
    certificate, files = certify(tmp_path)
    sinks, gateways = [Sink(), Sink()], []
    try:
        for sink in sinks:
            sink.start()
            gateway = programs.collector(
                "gateway.yaml",
                **files,
                OTEL_CACHE_COLLECTOR_BACKEND=f"localhost:{sink.port}",
                OTEL_CACHE_COLLECTOR_DECISION_WAIT="1s",
                OTEL_CACHE_COLLECTOR_SHARE="100",
            )
            gateways.append(gateway.grpc)
        config = yaml.safe_load((CONFIGS / "agent.yaml").read_text())
        config["exporters"]["load_balancing"]["resolver"] = {"static": {"hostnames": gateways}}
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(config))
        agent = programs.collector(
            tmp_path / "agent.yaml",
            OTEL_CACHE_COLLECTOR_GATEWAY_CA=str(certificate),
            OTEL_CACHE_COLLECTOR_TOKEN=TOKEN,
            OTEL_CACHE_COLLECTOR_ENVIRONMENT="test bed",
        )
        with traced(lab["0.32.0"], tmp_path / "load", f"http://{agent.grpc}") as load:
            load.run(hybrid("h"))
            load.await_exported()
        sent = ids(spans_of(load.out))
        wait_until(lambda: ids(sinks[0].spans) | ids(sinks[1].spans) >= sent, "every span has come", EXPORT_SECONDS)
        first, second = ({span.trace_id for span in sink.spans} for sink in sinks)
        assert first
        assert second
        assert not first & second, "of no trace has each a part"
        environments = {span.resource["deployment.environment.name"] for sink in sinks for span in sink.spans}
        assert environments == {"test bed"}
    finally:
        for sink in sinks:
            sink.stop()
