"""docs/analyze.md has every rule of a finding, with the severities that the code gives it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from analyzers import findings, model, observations, pool_findings, routing
from analyzers.model import GroupState, LookupResult
from analyzers.rules import RULES, no_rule
from analyzers.settings import read_settings
from docs.markdown import read, rows, sections
from tests.cli.test_analyze import SETTINGS
from tests.reporters.example import REPEAT

SEVERITIES = {"error", "warning", "info"}
TOLD = {row[0].strip("`"): row[1] for row in rows(sections(read("docs/analyze.md"))["The rules"])}


def severities(text: str) -> set[str]:
    return {severity for severity in SEVERITIES if severity in text}


def test_every_rule_is_told_once() -> None:
    assert sorted(TOLD) == sorted(RULES) == sorted(set(RULES))


def losing(cls: str) -> Iterator[LookupResult]:
    """Yield lookups that lost most to a class, for each reason that makes another rule of it."""
    groups: list[GroupState] = [replace(group, state="evicted") for group in REPEAT.groups]
    for reason in ("", "after_drop"):
        yield replace(REPEAT, lost={cls: 9600}, reason=reason, facts=[], groups=groups)


def test_severities_of_lost_classes() -> None:
    settings = [read_settings(SETTINGS, "r0")]
    lookups = [result for cls in model.CLASSES for result in losing(cls)]
    found = [finding for result in lookups for finding in findings.findings([result], settings, {}, {})]
    assert {finding.rule for finding in found} == set(findings.RULES)
    for finding in found:
        assert severities(TOLD[finding.rule]) == {finding.severity}, finding


def said(module: ModuleType) -> Iterator[tuple[str, set[str]]]:
    """Yield the rule of each finding that a module makes, and the severities that it may have."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
            given = {each.arg: each.value for each in call.keywords}
            if isinstance(rule := given.get("rule"), ast.Constant):
                words = (each.value for each in ast.walk(given["severity"]) if isinstance(each, ast.Constant))
                yield str(rule.value), {str(word) for word in words} & SEVERITIES


def test_severities_of_the_others() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module in (observations, routing, pool_findings):
        for rule, words in said(module):
            found[rule] |= words
    assert set(found) == set(observations.RULES)
    for rule, words in found.items():
        assert severities(TOLD[rule]) == words, rule


def test_a_rule_that_there_is_not() -> None:
    assert no_rule("shifted_boundary").endswith("sampled. Did you mean 'shifted-boundary'?")
    assert no_rule("xyz").endswith("sampled")
