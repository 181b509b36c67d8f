"""Dashboards: as their generator writes them, typed as Grafana has it, and of metrics that there are."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.dashboards import __main__ as generator
from scripts.dashboards import boards, promql, rules
from scripts.dashboards.grafana import encode

from .manifests import CONFIGS, DEPLOY, ROOT, load

FOLDER = DEPLOY / "grafana" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
METRIC = r"\b(?:vllm|otel_cache)_[a-z_]+\b(?!\s*[=!]~?\s*\")"
RECORDED = {each.name for each in (*rules.RECORDED, *rules.COLLECTOR_RECORDED)}


def dashboard(path: Path) -> dict[str, Any]:
    """Return a dashboard's JSON."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def panels(path: Path) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that are no rows."""
    return [panel for panel in dashboard(path)["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    """Yield all expressions of dashboards and rules."""
    for path in FILES:
        for panel in panels(path):
            yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each.expr for each in (*rules.RECORDED, *rules.COLLECTOR_RECORDED, *rules.ALERTS))


def known_names() -> set[str]:
    """Return every metric that there is, a histogram's series included, and every label."""
    made = load(CONFIGS / "metrics.yaml")
    found = {promql.label(name) for name in made["resource"]}
    for metric in made["metrics"].values():
        found |= {promql.label(name) for name in metric.get("labels", ())}
        found.add(metric["prometheus"])
        if "duration" in metric or "delay" in metric:
            found |= {metric["prometheus"] + suffix for suffix in ("_bucket", "_sum", "_count")}
    return found


def test_files_are_as_generated() -> None:
    """`make dashboards` would change nothing."""
    command = [sys.executable, "-m", "scripts.dashboards", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path for path in generator.generate() if path.suffix == ".json"} == set(FILES)


def test_a_stale_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that somebody changed by hand are not what is generated."""
    edited = tmp_path / "rules.yaml"
    edited.write_text(rules.PATH.read_text().replace("> 0.1", "> 0.2"))
    monkeypatch.setattr(rules, "PATH", edited)
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_types(path: Path) -> None:
    """Grafana's own types read each file, and nothing in it is lost on them."""
    assert json.loads(encode(Dashboard.from_json(dashboard(path)))) == dashboard(path)


def test_prometheus_names_follow_from_the_registry() -> None:
    """What the registry calls a metric is in Prometheus what the collector's file says, and no metric is missing."""
    made = load(CONFIGS / "metrics.yaml")["metrics"]
    assert {name: metric["prometheus"] for name, metric in made.items()} == {
        name: promql.metric(name) for name in promql.METRICS
    }
    for name, metric in made.items():
        assert set(metric.get("labels", ())) == {each.id for each in promql.METRICS[name].attributes}, name


def test_metrics_exist() -> None:
    """No expression names a metric or a label that the collector does not make, or a record that no rule keeps."""
    for expr in expressions():
        bare = re.sub(r"\"[^\"]*\"|otel_cache:[a-z_:0-9]+", " ", expr)
        assert set(re.findall(METRIC, bare)) <= known_names(), expr
        assert set(re.findall(r"otel_cache:[a-z_:0-9]+", expr)) <= RECORDED, expr


def test_every_metric_is_shown() -> None:
    """Each metric that the collector makes is in a dashboard or a rule."""
    text = " ".join(expressions())
    shown = {promql.metric(name) for name in promql.METRICS if re.search(rf"\b{promql.metric(name)}(_bucket)?\b", text)}
    assert shown == {promql.metric(name) for name in promql.METRICS}


def test_groups_hits_are_never_summed() -> None:
    """What a lookup's groups hit is no metric, and nothing sums it."""
    assert not [expr for expr in expressions() if "group_hit" in expr or "group_lookup" in expr]


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_panels_explain_themselves(board: Any) -> None:
    """Each has a unit, a description, the data source of the variable, and a link to its alert's section."""
    path = FOLDER / f"{board.uid}.json"
    numbers = {panel["title"]: panel["id"] for panel in panels(FOLDER / "otel-cache-runbook.json")}
    described = {panel.title: panel for row in board.rows for panel in row.panels}
    assert dashboard(path)["templating"]["list"][0]["type"] == "datasource"
    for panel in panels(path):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        if alert := described[panel["title"]].alert:
            (link,) = panel["links"]
            assert link["url"] == f"/d/otel-cache-runbook?viewPanel=panel-{numbers[alert]}"
    assert len({panel["id"] for panel in dashboard(path)["panels"]}) == len(dashboard(path)["panels"])


def test_no_panel_lies_over_another() -> None:
    """The places in Grafana's grid are disjoint, and within its 24 columns."""
    for path in FILES:
        cells: set[tuple[int, int]] = set()
        for panel in dashboard(path)["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            here = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not here & cells, f"{path.name}: {panel['title']}"
            cells |= here
