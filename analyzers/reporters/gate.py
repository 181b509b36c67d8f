"""A verdict on a policy: to read, in Markdown, and as one JSON object."""

import json
from collections.abc import Sequence
from typing import Any

from analyzers.experiments.gate import Verdict
from analyzers.reporters.layout import sentence, table
from analyzers.reporters.markdown import markdown_table

WORDS = {"pass": "pass", "fail": "FAIL", "unknown": "cannot tell"}


def to_object(verdict: Verdict) -> dict[str, Any]:
    """Return the object that docs/experiments.md describes."""
    return {
        "outcome": verdict.outcome,
        "rules": [
            {"rule": each.rule, "outcome": each.outcome, "says": each.says, "evidence": each.evidence}
            for each in verdict.rules
        ],
        "recorded": {name: list(values) for name, values in verdict.recorded.items()},
    }


def render_json(verdict: Verdict) -> str:
    """Return the object as text."""
    return json.dumps(to_object(verdict), indent=2) + "\n"


def render(verdict: Verdict, width: int = 100) -> str:
    """Return the verdict as text."""
    rows = [(WORDS[each.outcome], each.rule, sentence(each.says)) for each in verdict.rules]
    lines = [f"Verdict: {WORDS[verdict.outcome]}", "", *table(("", "rule", ""), rows, ("<", "<", "<"), width)]
    return "\n".join(lines) + "\n"


def render_markdown(verdict: Verdict) -> str:
    """Return the verdict as Markdown, for a pull request."""
    rows = [(WORDS[each.outcome], each.rule, sentence(each.says)) for each in verdict.rules]
    settings = [(name, _shown(values)) for name, values in verdict.recorded.items()]
    blocks = [
        f"**Prefix cache: {WORDS[verdict.outcome]}**",
        markdown_table(("", "rule", "says"), rows, "<<<"),
        markdown_table(("setting", "recorded"), settings, "<<"),
    ]
    return "\n\n".join(blocks) + "\n"


def _shown(values: Sequence[Any]) -> str:
    return " and ".join(str(value) for value in values) or "not recorded"
