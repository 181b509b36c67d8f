"""The JSON report: the documented schema, key for key, and the same text for the same analysis."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings

from analyzers import observations
from analyzers.model import Analysis
from analyzers.reporters.json import render, to_object
from tests.reporters.example import ANALYSIS, COLD, EMPTY, REPEAT, analyses

GOLDEN = Path(__file__).parent / "golden.json"
OPEN = (
    "replicas[].settings", "tokens.lost", "lookups[].lost", "findings[].evidence", "lookups[].facts[].data",
    "coverage.skew_ms",
)  # fmt: skip
"""Objects whose keys are no part of the schema."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "analyze.md"


def test_the_golden_report() -> None:
    assert render(ANALYSIS) == GOLDEN.read_text()


def test_an_empty_analysis_has_every_key() -> None:
    assert list(json.loads(render(EMPTY))) == list(json.loads(GOLDEN.read_text()))


def test_the_selection_of_lookups_changes_only_their_list() -> None:
    def chosen(lookups: Any) -> list[str]:
        made = to_object(ANALYSIS, lookups)
        assert {**made, "lookups": []} == {**to_object(ANALYSIS), "lookups": []}
        return [lookup["request_id"] for lookup in made["lookups"]]

    assert chosen("all") == ["cold-0", "repeat-0"]
    assert chosen("losing") == ["repeat-0"]
    assert chosen("none") == []


def test_the_order_of_what_has_none_does_not_matter() -> None:
    turned = replace(
        ANALYSIS,
        lost=dict(reversed(ANALYSIS.lost.items())),
        lookups=[COLD, replace(REPEAT, groups=REPEAT.groups[::-1], lost=dict(reversed(REPEAT.lost.items())))],
        replicas={name: dict(reversed(settings.items())) for name, settings in ANALYSIS.replicas.items()},
    )
    assert render(turned) == render(ANALYSIS)


@settings(max_examples=40, deadline=None)
@given(analyses())
def test_any_analysis_is_strict_json(analysis: Analysis) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    made = json.loads(render(analysis), parse_constant=refuse)
    assert made["schema_version"] == 1
    assert [lookup["hit_tokens"] for lookup in made["lookups"]] == [one.hit_tokens for one in analysis.lookups]


def test_every_key_is_documented() -> None:
    def keys(value: Any, path: str = "") -> set[str]:
        if path in OPEN:
            return set()
        if isinstance(value, dict):
            below = [{f"{path}.{key}".lstrip(".")} | keys(value[key], f"{path}.{key}".lstrip(".")) for key in value]
            return set().union(*below)
        if isinstance(value, list):
            return set().union(*(keys(each, path + "[]") for each in value))
        return set()

    section = DOCUMENT.read_text().partition("## The JSON report")[2]
    documented = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", section, re.MULTILINE))
    assert keys(to_object(ANALYSIS)) == documented


def test_every_rule_beside_the_lost_classes_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert set(observations.RULES) <= documented
