"""Alerts: each has a section in the runbook, unit tests, and says what it is about."""

import re
import subprocess
from pathlib import Path
from typing import Any

from docs.markdown import read, sections

from scripts.dashboards import rules

from .manifests import DEPLOY, KUBERNETES, load

RULES = DEPLOY / "prometheus" / "otel-cache.rules.yaml"
TESTS = DEPLOY / "prometheus" / "otel-cache.rules.test.yaml"


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for group in load(RULES)["groups"] for rule in group["rules"] if "alert" in rule}


def test_runbook() -> None:
    """Each alert has its section, which says what it means, costs and asks for; and no section is left over."""
    found = sections(read("docs/runbook.md"))
    assert [heading for heading in found if heading.startswith("OtelCache")] == list(alerts())
    for name in alerts():
        assert re.findall(r"^- \*\*(\w+)\*\*: \S", found[name], re.MULTILINE) == ["Says", "Costs", "Look", "Do"], name


def test_the_runbook_says_how_long() -> None:
    """How long a condition has to hold is in the section as it is in the rule."""
    words = {"5m": "5 minutes", "10m": "10 minutes", "15m": "15 minutes", "30m": "30 minutes", "1h": "an hour"}
    for name, alert in alerts().items():
        if alert["for"] != "0m":
            assert f"for {words[alert['for']]}" in sections(read("docs/runbook.md"))[name].replace("\n  ", " "), name


def test_every_alert_has_unit_tests() -> None:
    """One in which it fires, and one in which it does not."""
    fired: set[str] = set()
    quiet: set[str] = set()
    for test in load(TESTS)["tests"]:
        for case in test["alert_rule_test"]:
            (fired if case.get("exp_alerts") else quiet).add(case["alertname"])
    assert fired == quiet == set(alerts())


def test_severities() -> None:
    """Each says how urgent it is, in a word that the generator explains."""
    explained = rules.Alert.__doc__ or ""
    for name, alert in alerts().items():
        assert f"`{alert['labels']['severity']}`" in explained, name


def test_the_operator_gets_the_same_rules() -> None:
    """The resource for Prometheus' operator holds the groups of the file."""
    resource = load(KUBERNETES / "components" / "prometheus-operator" / "rules.yaml")
    assert resource["spec"] == load(RULES)


def test_the_runbooks_address_can_be_changed(tmp_path: Path) -> None:
    """The command of docs/operations.md changes it in every alert, and nothing else."""
    (command,) = re.findall(r"^sed .+rules\.yaml$", read("docs/operations.md"), re.MULTILINE)
    (tmp_path / "deploy").symlink_to(DEPLOY)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, timeout=30, check=True)
    expected = load(RULES)
    for alert in [rule for group in expected["groups"] for rule in group["rules"] if "alert" in rule]:
        url = alert["annotations"]["runbook_url"]
        alert["annotations"]["runbook_url"] = url.replace("http://localhost:3000", "https://grafana.example.com")
        assert alert["annotations"]["runbook_url"] != url
    assert load(tmp_path / "rules.yaml") == expected
