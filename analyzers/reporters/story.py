"""A request's story as text."""

from collections.abc import Sequence
from datetime import UTC, datetime

from analyzers.hit_sources import HitSource
from analyzers.model import LookupResult
from analyzers.reporters.boundaries import boundary_table
from analyzers.reporters.layout import INDENT, printable, sentence, shorten, table, wrap
from analyzers.story import Story


def render(stories: Sequence[Story], width: int = 80) -> str:
    """Return the stories, their lines at most `width` characters wide."""
    return "\n\n".join("\n".join(_story(story, width)) for story in stories) + "\n"


def _story(story: Story, width: int) -> list[str]:
    result = story.result
    lines = wrap(
        f"Request {printable(result.request_id)} on {printable(result.replica)}: hit {result.hit_tokens:,} of "
        f"{result.prompt_tokens:,} tokens, predicted {result.predicted_hit_tokens:,}",
        width,
    )
    if result.cause:
        lines += wrap(sentence(result.cause), width, INDENT)
    for source in story.sources:
        lines += wrap(_left(source, result), width, INDENT)
    if result.hit_tokens and not story.sources:
        lines += wrap("The capture does not tell who left the state that it hit", width, INDENT)
    lines += ["", "The ladder"]
    rows = [(f"{upper:,}", f"{lower:,}", f"{upper - lower:,}", cls) for cls, upper, lower in result.ladder]
    rows.append(("", f"{result.predicted_hit_tokens:,}", "", "predicted hit"))
    lines += table(("from", "to", "tokens", "class"), rows, (">", ">", ">", "<"), width, INDENT)
    facts = [f"{fact.cls}: {fact.says}" + (" (also)" if fact.data.get("also") else "") for fact in result.facts]
    if facts:
        lines += ["", "The evidence"]
        for fact in facts:
            lines += wrap(fact, width, INDENT, INDENT * 2)
    if result.needed_boundary and result.limiting_groups:
        lines += ["", f"The groups at the needed boundary, {result.needed_boundary:,}"]
        lines += boundary_table(result, width, INDENT)
    if result.best_hit_tokens is not None:
        lines += wrap(
            f"Best replica at that moment: {', '.join(result.best_replicas)} with {result.best_hit_tokens:,}; "
            f"regret {result.regret_tokens:,}",
            width,
        )
    begin = datetime.fromtimestamp(result.time / 1e9, UTC).isoformat(timespec="milliseconds")
    lines += ["", *wrap(f"Time line, in ms from the lookup at {begin}", width)]
    moments = [
        (f"{(moment.time - result.time) / 1e6:+,.3f}", shorten(moment.request, 24), moment.says)
        for moment in story.moments
    ]
    return lines + table(("ms", "request", "what"), moments, (">", "<", "<"), width, INDENT)


def _left(source: HitSource, result: LookupResult) -> str:
    """Say who left the state that the lookup hit."""
    chunk = "" if source.chunk is None else f" in its chunk {source.chunk[0]:,} to {source.chunk[1]:,}"
    groups = f"group{'' if len(source.groups) == 1 else 's'} {', '.join(map(str, source.groups))}"
    ago = (result.time - source.time) / 1e6
    return f"The state that it hit in {groups} was left by {printable(source.request)}{chunk}, {ago:,.3f} ms earlier"
