"""Rules and dashboards on the real Prometheus, which scrapes the real collector and real vLLM as deploy/ has it."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from conftest import Labs
from deploy.manifests import DEPLOY, load

from scripts.dashboards import rules

from .engines import Fleet, complete, words
from .load import EXPORT_SECONDS, hybrid, traced
from .programs import HOST, Program, Programs, Prometheus, fetch, free_port, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
WINDOW = "1m"
RECORDED = [each.name for each in (*rules.RECORDED, *rules.COLLECTOR_RECORDED)]
ROUNDS = 2
"""A rate is what a counter rises by after Prometheus has first seen it, and the first round is what it sees first."""


class Deployed(Prometheus):
    """Prometheus with the configuration of deploy/, its names of hosts replaced and its intervals a second."""

    def __init__(self, binary: Path, folder: Path, hosts: Mapping[str, str], replicas: Mapping[str, str]) -> None:
        """Start it: `hosts` are what the names stand for, `replicas` the address of each replica's vLLM by its id."""
        folder.mkdir(parents=True, exist_ok=True)
        found = folder / "replicas.json"
        groups = [{"targets": [host], "labels": {"vllm_replica_id": name}} for name, host in replicas.items()]
        found.write_text(json.dumps(groups))
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        for name, host in hosts.items():
            assert name in text
            text = text.replace(name, host)
        config = yaml.safe_load(text.replace("/etc/prometheus/replicas.yaml", str(found)))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        listen = f"{HOST}:{free_port()}"
        self.url = f"http://{listen}"
        command = [str(binary), f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        Program.__init__(self, [*command, f"--web.listen-address={listen}"], folder, "prometheus")
        self.await_ready(lambda: fetch(f"{self.url}/-/ready"))

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression that are numbers."""
        values = [float(each["value"][1]) for each in self.query(expression)]
        return [value for value in values if not math.isnan(value)]

    def total(self, metric: str) -> float:
        """Return the sum over a metric."""
        return sum(self.values(metric))


@pytest.fixture(scope="module")
def prometheus(
    lab: Labs,
    fleet: Fleet,
    session_programs: Programs,
    backends: Mapping[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Deployed:
    """Prometheus after the demo load: two real engines, and schedulers whose pools evict, behind one collector."""
    folder = tmp_path_factory.mktemp("prometheus")
    hosts = {"collector:8889": fleet.collector.spanmetrics, "collector:8888": fleet.collector.telemetry}
    replicas = {engine.replica: engine.url.removeprefix("http://") for engine in fleet.engines}
    started = session_programs.keep(Deployed(backends["prometheus"], folder, hosts, replicas))
    with traced(lab["0.32.0"], folder / "load", f"http://{fleet.collector.grpc}") as load:
        for number in range(ROUNDS):
            before = {name: started.total(name) for name in _RISING}
            load.run(hybrid(f"prometheus-{number}"))
            # The first repeat of a prompt misses, the second hits.
            for engine, _ in itertools.product(fleet.engines, range(3)):
                complete(engine.url, words(20 + number))
            load.await_exported()
            fleet.settle()
            wait_until(
                lambda before=before: all(started.total(name) > was for name, was in before.items()),  # type: ignore[misc]
                "Prometheus has scraped the round",
                EXPORT_SECONDS,
            )
    wait_until(lambda: all(started.values(name) for name in RECORDED), "all rules have recorded", EXPORT_SECONDS)
    shares = "otel_cache:traced_requests:ratio_rate15m"
    wait_until(lambda: len(started.query(shares)) == len(fleet.engines), "each engine's share", EXPORT_SECONDS)
    return started


_RISING = (
    "vllm_kv_cache_evicted_blocks_total",
    "vllm_engine_requests_total",
    '{__name__="vllm:request_success_total"}',
)


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each panel's name and each of its expressions, with Grafana's variables as they begin."""
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"].replace("$__rate_interval", WINDOW)
                yield f"{path.stem}: {panel['title']}", re.sub(r"\$(model|replica)\b", ".*", expr)


def test_every_panel_shows_something(prometheus: Deployed) -> None:
    """No expression of a dashboard is refused, is empty, or has no number."""
    found = dict.fromkeys(f"{title}: {expr}" for title, expr in expressions() if not prometheus.values(expr))
    assert not found, "\n".join(found)


def test_every_rule_records(prometheus: Deployed) -> None:
    """No rule fails, none that records is without a number, and each alert compares something that is there."""
    answer = json.loads(fetch(f"{prometheus.url}/api/v1/rules"))["data"]["groups"]
    evaluated = {rule["name"]: rule for group in answer for rule in group["rules"]}
    assert set(evaluated) == {*RECORDED, *(alert.name for alert in rules.ALERTS)}
    assert {name: rule["lastError"] for name, rule in evaluated.items() if rule["health"] != "ok"} == {}
    for alert in rules.ALERTS:
        prometheus.query(alert.expr)
        compared = re.findall(r"otel_cache:[a-z_:0-9]+", alert.expr)
        assert compared and all(prometheus.values(name) for name in compared), alert.name


def test_what_is_recorded_is_so(prometheus: Deployed, fleet: Fleet) -> None:
    """Of the load: hits and losses are shares, every request of the engines is traced, no evidence is missing."""
    for name in ("hit_share", "group_shortfall_share", "evicted_share", "not_found_share", "preempted_share"):
        assert all(0 <= value <= 1 for value in prometheus.values(f"otel_cache:{name}:ratio_rate30m")), name
    assert max(prometheus.values("otel_cache:hit_share:ratio_rate30m")) > 0
    assert max(prometheus.values("otel_cache:group_shortfall_share:ratio_rate30m")) > 0
    traced_requests = prometheus.query("otel_cache:traced_requests:ratio_rate15m")
    assert {each["metric"]["vllm_replica_id"] for each in traced_requests} == {each.replica for each in fleet.engines}
    assert [each for each in rules.ALERTS if prometheus.query(each.expr) and each.severity == "critical"] == []
    for name in ("lost_records", "undelivered_spans"):
        assert set(prometheus.values(f"otel_cache:{name}:increase15m")) == {0.0}
    targets = json.loads(fetch(f"{prometheus.url}/api/v1/targets"))["data"]["activeTargets"]
    assert {target["health"] for target in targets} == {"up"} and len(targets) == 2 + len(fleet.engines)
    assert {job["job_name"] for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]} == {
        target["labels"]["job"] for target in targets
    }
