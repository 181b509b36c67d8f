"""A worksheet to read, and as one JSON object."""

import json
from typing import Any

from analyzers.experiments.worksheet import GroupRow, Worksheet
from analyzers.reporters.layout import INDENT, Align, count, sentence, table, wrap
from otel_cache.semconv.positions import compress_positions, format_positions

SHOWN_RUNS = 6


def to_object(sheet: Worksheet) -> dict[str, Any]:
    """Return the object that docs/experiments.md describes."""
    settings = sheet.settings
    return {
        "prompt_tokens": sheet.prompt_tokens,
        "final_aligned_boundary": sheet.final_aligned_boundary,
        "speculative_adjustment": sheet.speculative_adjustment,
        "resend_boundary": sheet.resend_boundary,
        "extension_boundary": sheet.extension_boundary,
        "minimum_cacheable_prefix": sheet.minimum_cacheable_prefix,
        "minimum_resend_tokens": sheet.minimum_resend_tokens,
        "repeat_hits": list(sheet.hits),
        "extension_hit": sheet.extension_hit,
        "verdict": sheet.verdict,
        "says": sheet.says,
        "groups": [
            {
                "group": row.group.index,
                "kind": row.group.kind,
                "block_size": row.group.block_size,
                "window": row.group.window,
                "drops_for_speculation": row.group.drops,
                "kept": _runs(row),
                "kept_blocks": len(row.kept),
                "at_resend_boundary": row.at_resend,
                "at_extension_boundary": row.at_extension,
            }
            for row in sheet.groups
        ],
        "settings": {
            "vllm_version": settings.version,
            "scheduler_block_size": settings.scheduler_block,
            "match_unit": settings.hash_block,
            "hit_alignment": settings.alignment,
            "hash_lookahead_tokens": settings.lookahead,
            "retention_interval": settings.retention,
            "shared_prefix_checkpoint": settings.shared_prefix_checkpoint,
            "speculative_method": settings.speculative_method,
            "speculative_tokens": settings.speculative_tokens,
            "max_num_batched_tokens": settings.max_batched_tokens,
            "prefix_caching": settings.prefix_caching,
        },
    }


def render_json(sheet: Worksheet) -> str:
    """Return the object as text."""
    return json.dumps(to_object(sheet), indent=2) + "\n"


def render(sheet: Worksheet, width: int = 100) -> str:
    """Return the worksheet as text of lines of at most `width` characters."""
    settings = sheet.settings
    speculation = settings.speculative_method or "none"
    retention = settings.retention if settings.retention == "dense" else f"{int(settings.retention):,}"
    lines = wrap(
        f"A prompt of {count(sheet.prompt_tokens, 'token')}; vLLM {settings.version or '(version not known)'}, "
        f"speculation {speculation}, match unit {settings.hash_block:,}, retention interval {retention}, at most "
        f"{settings.max_batched_tokens:,} tokens in a step",
        width,
    )
    rows = (
        ("last aligned boundary", sheet.final_aligned_boundary),
        ("speculation takes off a resend's hit", sheet.speculative_adjustment),
        ("boundary of an identical resend", sheet.resend_boundary),
        ("boundary of a longer prompt", sheet.extension_boundary),
        ("shortest prefix that can be reused", sheet.minimum_cacheable_prefix),
        ("shortest prompt whose resend can hit", sheet.minimum_resend_tokens),
    )
    names = max(len(name) for name, _ in rows)
    lines += ["", *(f"{INDENT}{name:<{names}}  {tokens:>9,}" for name, tokens in rows), ""]
    # Where a resend and a longer prompt have one boundary, what is kept there is the same, and one column says it.
    same = sheet.resend_boundary == sheet.extension_boundary
    boundaries = (sheet.resend_boundary, sheet.extension_boundary)[: 1 if same else 2]
    header = ("group", "kind", "block", "kept", *(f"at {boundary:,}" for boundary in boundaries))
    aligned: list[Align] = ["<", "<", ">", ">", "<", "<", "<"]
    cells = [
        (
            str(row.group.index),
            row.group.kind,
            f"{row.group.block_size:,}",
            f"{len(row.kept):,}",
            *map(_word, (row.at_resend, row.at_extension), boundaries),
            _shown(row),
        )
        for row in sheet.groups
    ]
    lines += table((*header, "after the first send"), cells, aligned, width, INDENT)
    lines += ["", *wrap(f"{_hits(sheet)}.", width), *wrap(f"Verdict: {sheet.verdict}. {sentence(sheet.says)}.", width)]
    return "\n".join(lines) + "\n"


def _hits(sheet: Worksheet) -> str:
    repeats = ", ".join(f"{hit:,}" for hit in sheet.hits)
    return f"Sent again and again, to an otherwise empty cache: {repeats}; a longer prompt: {sheet.extension_hit:,}"


def _word(there: bool, boundary: int) -> str:
    return "-" if not boundary else "kept" if there else "missing"


def _runs(row: GroupRow) -> str:
    return format_positions(compress_positions(row.kept, row.group.block_size))


def _shown(row: GroupRow) -> str:
    runs = _runs(row).split(",")
    shown = runs if len(runs) <= SHOWN_RUNS else ["...", *runs[-SHOWN_RUNS:]]
    return ", ".join(shown) or "nothing"
