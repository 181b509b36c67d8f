"""The table of a sweep: to read, in Markdown, and as one JSON object."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.experiments.sweep import Measured, Value
from analyzers.reporters.layout import Align, percent, shorten, table, wrap
from analyzers.reporters.markdown import escape, markdown_table

NAMES = {
    "retention_interval": "retention",
    "max_num_batched_tokens": "batched tokens",
    "match_unit": "match unit",
    "num_gpu_blocks": "pool",
    "replicas": "replicas",
    "routing": "routing",
}
OWN = "first on its replica"
HEAD = (
    "first repeat",
    "later repeats",
    "prefill",
    "cached blocks by group",
    "evicted",
    "warm",
    "best",
    "warm together",
)
LEGEND = (
    "Reuse is hit tokens, with their share of the tokens that an earlier request had, on whichever replica. Cached "
    "blocks: at the most, all groups together. Warm: conversations at once that lost nothing from turn to turn; the "
    "two longest of them. *: no other setting reuses as much, caches as few blocks and evicts as few, and is better in "
    "one of these."
)
OWN_LEGEND = (
    "First on its replica: of what one earlier request on the same replica had; where that hits and the first repeat "
    "does not, routing is what misses."
)
REFUSED = "refused"


def render(rows: Sequence[Measured], width: int = 160) -> str:
    """Return the table as text."""
    header, cells = table_of(rows)
    aligned: list[Align] = ["<"] * len(header)
    lines = table(header, cells, aligned, width)
    for reason in refusals(rows):
        lines += ["", *wrap(reason, min(width, 100))]
    return "\n".join([*lines, "", *wrap(legend(rows), min(width, 100))]) + "\n"


def render_markdown(rows: Sequence[Measured]) -> str:
    """Return the table as Markdown."""
    header, cells = table_of(rows)
    below = "".join(f"\n\n{escape(text)}" for text in (*refusals(rows), legend(rows)))
    return markdown_table(header, cells, "<" * len(header)) + f"{below}\n"


def render_json(rows: Sequence[Measured]) -> str:
    """Return the object that docs/experiments.md describes."""
    return json.dumps({"settings": [to_object(row) for row in rows]}, indent=2) + "\n"


def to_object(row: Measured) -> dict[str, Any]:
    """Return one setting of the object."""
    return {
        **row.varied,
        "vllm_version": row.version,
        "first_repeat": {"hit_tokens": row.first[0], "shared_tokens": row.first[1]},
        "first_repeat_on_replica": {"hit_tokens": row.own[0], "shared_tokens": row.own[1]},
        "later_repeats": {"hit_tokens": row.later[0], "shared_tokens": row.later[1]},
        "prefill_tokens": row.prefill,
        "cached_blocks": {str(group): blocks for group, blocks in row.cached.items()},
        "evicted_blocks": {str(group): blocks for group, blocks in row.evicted.items()},
        "warm": row.warm,
        "longest": [{"request_id": request, "tokens": tokens} for request, tokens in row.longest],
        "pareto": row.pareto,
        "refused": row.refused or None,
    }


def varied_of(rows: Sequence[Measured]) -> list[str]:
    """Return what is varied, as the table calls it."""
    names = [NAMES[name] for name in NAMES if name in rows[0].varied]
    return names + ["vLLM"] * ("vllm" in rows[0].varied)


def varied_values(row: Measured) -> list[Value]:
    """Return the values of what is varied, but for vLLM, in the order of the columns."""
    return [row.varied[name] for name in NAMES if name in row.varied]


def table_of(rows: Sequence[Measured]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head of the table and its cells, as text."""
    own = routed(rows)
    header = (*(NAMES[name] for name in NAMES if name in rows[0].varied), "vLLM", HEAD[0], *(OWN,) * own, *HEAD[1:])
    return header, [(*map(_value, varied_values(row)), *_cells(row, own)) for row in rows]


def routed(rows: Sequence[Measured]) -> bool:
    """Whether a setting's replicas had less to repeat than all of them together: there is a column for that then."""
    return any(row.own != row.first for row in rows if not row.refused)


def legend(rows: Sequence[Measured]) -> str:
    """Return what the columns mean."""
    return f"{LEGEND} {OWN_LEGEND}" if routed(rows) else LEGEND


def refusals(rows: Sequence[Measured]) -> list[str]:
    """Return a sentence for each setting that vLLM refuses: which, and why."""
    return [f"Refused: {', '.join(_setting(row))}: {row.refused}" for row in rows if row.refused]


def _setting(row: Measured) -> list[str]:
    return [f"{NAMES[name]} {_value(row.varied[name])}" for name in NAMES if name in row.varied] + [
        f"vLLM {_version(row)}"
    ] * bool(_version(row))


def _version(row: Measured) -> str:
    """Return vLLM's version, or where none of it could be asked the folder that was named."""
    return row.version or str(row.varied.get("vllm", ""))


def _cells(row: Measured, own: bool) -> tuple[str, ...]:
    if row.refused:
        return (_version(row), REFUSED, *[""] * (len(HEAD) + own - 1))
    return (
        row.version,
        _reuse(row.first),
        *(_reuse(row.own),) * own,
        _reuse(row.later),
        f"{row.prefill:,}",
        _blocks(row.cached),
        f"{sum(row.evicted.values()):,}",
        f"{row.warm:,}",
        "*" if row.pareto else "",
        ", ".join(f"{shorten(request, 20)} ({tokens:,})" for request, tokens in row.longest) or "-",
    )


def _reuse(pair: tuple[int, int]) -> str:
    return f"{pair[0]:,} ({percent(*pair)})" if pair[1] else "-"


def _blocks(blocks: Mapping[int, int]) -> str:
    """Write blocks by group; groups one after the other that have the same share a place: `0-2: 7, 3: 49`."""
    runs: list[list[int]] = []
    for group, count in blocks.items():
        if runs and runs[-1][2] == count and runs[-1][1] == group - 1:
            runs[-1][1] = group
        else:
            runs.append([group, group, count])
    return ", ".join(f"{a if a == b else f'{a}-{b}'}: {count:,}" for a, b, count in runs) or "-"


def _value(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
