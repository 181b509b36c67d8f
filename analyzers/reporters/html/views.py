"""What the page shows, as plain rows: which lookups, and of each what the template writes down."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from analyzers.model import Analysis, LookupResult, Sequence_
from analyzers.reporters import selection
from analyzers.reporters.boundaries import HEADER, state_rows
from analyzers.reporters.html.bars import marks, segments
from analyzers.reporters.selection import Lookups, avoidable, ordered, select_lookups

MAX_ROWS = 2_000
MAX_DETAILS = 300
MAX_FAMILIES = 25
MAX_MEMBERS = 60
MAX_SEQUENCES = 200


class Chosen(NamedTuple):
    """Indices into `Analysis.lookups`: those that are listed, and those of them that are told in full."""

    listed: Sequence[int]
    told: frozenset[int]
    left_out: int


def choose(analysis: Analysis, lookups: Lookups) -> Chosen:
    """Return what is shown of the lookups: of very many those that lost most, in the order of time."""
    wanted = {id(lookup) for lookup in select_lookups(analysis, lookups)}
    every = [index for index, lookup in enumerate(analysis.lookups) if id(lookup) in wanted]
    seen = {finding.lookup for finding in analysis.findings if finding.lookup is not None}

    def worst(index: int) -> tuple[bool, int, int]:
        return index not in seen, -_avoidable(analysis.lookups[index]), index

    ranked = sorted(every, key=worst)
    told = {index for index in ranked[:MAX_DETAILS] if index in seen or any(analysis.lookups[index].lost.values())}
    return Chosen(sorted(ranked[:MAX_ROWS]), frozenset(told | seen), max(0, len(every) - MAX_ROWS))


def heaps(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the heaps that the prompts' tokens fall into, with the classes of each."""
    rows: list[dict[str, Any]] = [{"title": "served from cache", "tokens": analysis.hit_tokens, "classes": []}]
    for title, classes in selection.heaps(analysis.lost):
        rows.append({"title": title, "tokens": sum(tokens for _, tokens in classes), "classes": classes})
    return rows


def findings(analysis: Analysis, chosen: Chosen) -> list[dict[str, Any]]:
    """Return the findings, each with the lookup that it links to."""
    return [
        {
            "finding": finding,
            "lookup": finding.lookup if finding.lookup in chosen.told else None,
            "request": analysis.lookups[finding.lookup].request_id if finding.lookup is not None else "",
        }
        for finding in analysis.findings
    ]


def families(analysis: Analysis, chosen: Chosen) -> list[dict[str, Any]]:
    """Return the families of more than one lookup that lost most, their members in the order of time."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, lookup in enumerate(analysis.lookups):
        members[lookup.family].append(index)
    several = [(family, indices) for family, indices in members.items() if len(indices) > 1]
    several.sort(key=lambda each: (-sum(_avoidable(analysis.lookups[index]) for index in each[1]), each[0]))
    shown = []
    for family, indices in several[:MAX_FAMILIES]:
        own = sorted(indices, key=lambda index: (analysis.lookups[index].time, index))
        first = analysis.lookups[own[0]].time
        shown.append(
            {
                "family": family,
                "longest": max(analysis.lookups[index].prompt_tokens for index in own[:MAX_MEMBERS]),
                "avoidable": sum(_avoidable(analysis.lookups[index]) for index in own),
                "count": len(own),
                "members": [
                    {
                        "lookup": analysis.lookups[index],
                        "seconds": (analysis.lookups[index].time - first) / 1e9,
                        "segments": segments(analysis.lookups[index]),
                        "groups": [(group, marks(group)) for group in analysis.lookups[index].groups],
                        "link": index if index in chosen.told else None,
                    }
                    for index in own[:MAX_MEMBERS]
                ],
            }
        )
    return shown


def sequences(analysis: Analysis) -> Sequence[Sequence_]:
    """Return the sequences, those with a pattern first."""
    return sorted(analysis.sequences, key=lambda each: not each.pattern)[:MAX_SEQUENCES]


def rows(analysis: Analysis, chosen: Chosen) -> list[dict[str, Any]]:
    """Return a row per lookup that is listed."""
    begin = min((lookup.time for lookup in analysis.lookups), default=0)
    return [
        {
            "index": index,
            "link": index in chosen.told,
            "seconds": (analysis.lookups[index].time - begin) / 1e9,
            "lookup": analysis.lookups[index],
            "avoidable": _avoidable(analysis.lookups[index]),
            "losses": ordered(analysis.lookups[index].lost),
        }
        for index in chosen.listed
    ]


def details(analysis: Analysis, chosen: Chosen) -> list[dict[str, Any]]:
    """Return what is told of each lookup that is told in full: its bar, its groups, its facts."""
    return [
        {
            "index": index,
            "lookup": analysis.lookups[index],
            "segments": segments(analysis.lookups[index]),
            "losses": ordered(analysis.lookups[index].lost),
            "header": (*HEADER, f"at {analysis.lookups[index].needed_boundary:,}"),
            "boundaries": state_rows(analysis.lookups[index]),
        }
        for index in sorted(chosen.told)
    ]


def replicas(analysis: Analysis) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each replica's settings as text, by name."""
    return [
        (replica, [(name, _text(value)) for name, value in sorted(settings.items())])
        for replica, settings in sorted(analysis.replicas.items())
    ]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _avoidable(lookup: LookupResult) -> int:
    return sum(max(0, tokens) for tokens in avoidable(lookup.lost).values())
