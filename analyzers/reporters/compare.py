"""A comparison of two reports: to read, in Markdown, and as one JSON object."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.experiments.compare import HIT, Comparison
from analyzers.reporters.layout import INDENT, Align, count, percent, shorten, table, wrap
from analyzers.reporters.markdown import escape, markdown_table

SHOWN = 20


def to_object(found: Comparison) -> dict[str, Any]:
    """Return the object that docs/experiments.md describes."""
    return {
        "prompt_tokens": _pair(found.prompt),
        "hit_tokens": _pair(found.hit),
        "lost": {name: _pair(pair) for name, pair in found.lost.items()},
        "went": found.went,
        "came": found.came,
        "moved": [
            {"from": move.before, "to": move.after, "tokens": move.tokens, "requests": move.requests}
            for move in found.others
        ],
        "matched_requests": found.matched,
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "requests": [
            {
                "request_id": each.request_id,
                "prompt_tokens": each.prompt_tokens,
                "hit_tokens": _pair((each.hit_before, each.hit_after)),
                "lost_before": dict(each.lost_before),
                "lost_after": dict(each.lost_after),
            }
            for each in found.changed
        ],
        "findings": {rule: _pair(pair) for rule, pair in found.rules.items()},
        "settings": {name: _pair(pair) for name, pair in found.settings.items()},
    }


def render_json(found: Comparison) -> str:
    """Return the object as text."""
    return json.dumps(to_object(found), indent=2) + "\n"


def render(found: Comparison, width: int = 100) -> str:
    """Return the comparison as text of lines of at most `width` characters."""
    aligned: tuple[Align, ...] = ("<", ">", ">", ">", "<")
    lines = table(("", "before", "after", "change", ""), _sums(found), aligned, width)
    for title, rows in _parts(found):
        lines += ["", title]
        lines += [line for row in rows for line in wrap(row, width, INDENT, INDENT * 2)]
    return "\n".join(lines) + "\n"


def render_markdown(found: Comparison) -> str:
    """Return the comparison as Markdown, for a pull request."""
    blocks = [markdown_table(("", "before", "after", "change", "of the prompt"), _sums(found), "<>>>>")]
    for title, rows in _parts(found):
        blocks.append(f"**{title}**\n\n" + "\n".join(f"- {escape(row)}" for row in rows))
    return "\n\n".join(blocks) + "\n"


def _sums(found: Comparison) -> list[tuple[str, str, str, str, str]]:
    def row(name: str, pair: tuple[int, int], share: bool = True) -> tuple[str, str, str, str, str]:
        shares = [percent(part, whole) for part, whole in zip(pair, found.prompt, strict=True)]
        return name, f"{pair[0]:,}", f"{pair[1]:,}", f"{pair[1] - pair[0]:+,}", " to ".join(shares) if share else ""

    return [
        row("prompt tokens", found.prompt, False),
        row("served from cache", found.hit),
        *(row(name, pair) for name, pair in found.lost.items()),
    ]


def _parts(found: Comparison) -> list[tuple[str, list[str]]]:
    """Return titles and sentences; a part without a sentence is left out."""
    parts = [
        ("Went: lost before, served now", [f"{name}: {count(n, 'token')}" for name, n in found.went.items()]),
        ("Came: served before, lost now", [f"{name}: {count(n, 'token')}" for name, n in found.came.items()]),
        (
            "Moved: lost to another class",
            [
                f"{move.before} to {move.after}: {count(move.tokens, 'token')} in {count(move.requests, 'request')}"
                for move in found.others
            ],
        ),
        ("Findings", _findings(found.rules)),
        ("Settings", [_setting(name, *pair) for name, pair in found.settings.items()]),
        (
            "Requests that changed most",
            [
                f"{shorten(each.request_id, 40)}: hit {each.hit_before:,} to {each.hit_after:,} of "
                f"{each.prompt_tokens:,}; lost {_lost(each.lost_before)} to {_lost(each.lost_after)}"
                for each in found.changed
            ],
        ),
    ]
    if found.only_before or found.only_after:
        says = f"{len(found.only_before):,} only before, {len(found.only_after):,} only after"
        parts.append(("Requests that are not in both, or not with one prompt", [says]))
    if not found.matched:
        parts.insert(0, ("No request is in both captures", ["nothing to compare: one is found again by id and prompt"]))
    elif not found.moved:
        parts.insert(0, ("No request lost more or less than before", [f"{count(found.matched, 'request')} compared"]))
    return [(title, rows[:SHOWN]) for title, rows in parts if rows]


def _findings(rules: Mapping[str, tuple[int | None, int | None]]) -> list[str]:
    said = []
    for rule, (one, two) in rules.items():
        if one is None:
            said.append(f"new: {rule}{_tokens(two)}")
        elif two is None:
            said.append(f"gone: {rule}{_tokens(one)}")
        elif one != two:
            said.append(f"{rule}: {one:,} to {two:,} tokens")
    return said


def _tokens(tokens: int | None) -> str:
    """Write the tokens of a finding; nothing where it is about none."""
    return f", {count(tokens, 'token')}" if tokens else ""


def _setting(name: str, one: Sequence[Any], two: Sequence[Any]) -> str:
    return f"{name}: {_values(one)} to {_values(two)}"


def _values(values: Sequence[Any]) -> str:
    return " and ".join(map(_value, values)) or "none"


def _value(value: Any) -> str:
    """Write a setting as OpenTelemetry's tools write attributes, a list's items after one another."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)


def _lost(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {tokens:,}" for name, tokens in lost.items() if name != HIT) or "nothing"


def _pair(pair: Sequence[Any]) -> dict[str, Any]:
    return {"before": pair[0], "after": pair[1]}
