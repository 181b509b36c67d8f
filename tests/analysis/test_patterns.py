"""Patterns: hits of sends in time, what they are called, and which lookup they are due to."""

from pathlib import Path

import pytest
from conftest import Labs
from lab.cases import shipped

from analyzers.analysis import analyze
from analyzers.model import LookupResult
from analyzers.readers import open_capture
from analyzers.sequences import name_across, pattern, remarkable


@pytest.mark.parametrize(
    ("hits", "name"),
    [
        ([0, 0, 9600, 9600], "miss-miss-hit"),
        ([9600, 0, 9600], "hit-miss-hit"),
        ([0, 9600, 11200], "short-then-full"),
        ([0, 9600, 11200, 11200], "short-then-full"),
        ([0, 9600, 8000, 9600], "miss-hit"),
        ([0, 0, 0], "never hits"),
        ([0, 9600], "miss-hit"),
        ([9600], "hit"),
    ],
)
def test_pattern(hits: list[int], name: str) -> None:
    assert pattern(hits) == name


def sends(*pairs: tuple[str, int]) -> list[LookupResult]:
    """Return lookups of one prompt, each on a replica, with a hit."""
    return [
        LookupResult(f"r{place}", replica, 0, place, 1, 9999, hit, hit, 9600, {}, [], [])
        for place, (replica, hit) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([("a", 0), ("b", 0)], "one send per replica"),
        ([("a", 0), ("b", 0), ("c", 0)], "one send per replica"),
        ([("a", 0), ("b", 0), ("a", 0)], "never hits"),
        ([("a", 0), ("b", 0), ("a", 9600)], "once per replica"),
        ([("a", 0), ("b", 9600)], "miss-hit"),
        ([("a", 0), ("b", 0), ("a", 9600), ("b", 0)], "miss-miss-hit-miss"),
    ],
)
def test_across_replicas(rows: list[tuple[str, int]], name: str) -> None:
    """A replica that was sent a prompt once could not have hit it."""
    assert name_across(sends(*rows)) == name


@pytest.mark.parametrize(
    ("prompts", "hits", "lost", "place"),
    [
        # One prompt: a repeat that missed comes before what the first send lost.
        ("aaaa", [0, 0, 9600, 9600], [11200, 9600, 0, 0], 1),
        ("aaaa", [0, 0, 9600, 9600], [0, 9600, 1600, 1600], 1),
        ("aaaa", [0, 9600, 9600, 0], [11200, 1600, 1600, 9600], 3),
        ("aaaa", [9600, 0, 9600, 0], [0, 9600, 0, 9600], 1),
        ("aaa", [0, 0, 0], [11200, 9600, 9600], 1),
        # A repeat that lost nothing avoidable missed by design.
        ("aaa", [0, 0, 0], [11200, 0, 9600], 2),
        # No repeat missed: the one that hit least, then what the first lost.
        ("aaaa", [0, 8000, 9600, 11200], [11200, 3200, 1600, 0], 1),
        ("aaaa", [0, 11200, 8000, 9600], [11200, 1600, 3200, 1600], 2),
        ("aaa", [0, 11200, 11200], [11200, 0, 0], 0),
        ("aaa", [0, 9600, 9600], [11200, 1600, 1600], 0),
        ("aaa", [0, 9600, 9600], [0, 1600, 1600], 1),
        ("aaa", [0, 9600, 9600], [0, 0, 0], None),
        # Prompts that go on from the first: a repeat that missed, any that missed, the one that lost most.
        ("abbb", [0, 0, 0, 9600], [0, 1600, 9600, 0], 2),
        ("abcd", [0, 0, 8000, 8000], [0, 8000, 1600, 1600], 1),
        ("abcd", [0, 3200, 0, 9600], [0, 1600, 6400, 0], 2),
        ("abcd", [0, 3200, 4800, 9600], [3200, 1600, 6400, 0], 2),
        ("abcd", [0, 3200, 6400, 9600], [3200, 0, 0, 0], None),
        # A prompt that is not known is like no other.
        ("??", [0, 0], [11200, 9600], 1),
    ],
)
def test_what_a_pattern_is_due_to(prompts: str, hits: list[int], lost: list[int], place: int | None) -> None:
    rows = sends(*(("a", hit) for hit in hits))
    for row, tokens in zip(rows, lost, strict=True):
        row.lost = {"cold": 400, "shifted_boundary": tokens}
    found = remarkable(rows, [0 if each == "?" else ord(each) for each in prompts])
    assert (found and rows.index(found)) == place


@pytest.mark.vllm
def test_a_new_life_of_a_replica_is_not_why_its_own_repeats_miss(lab: Labs, tmp_path: Path) -> None:
    """The model case on a replica that had it in an earlier life, on another vLLM: the second send had its prefix."""
    for version in ("0.32.0", "0.28.0"):
        lab[version].run(shipped("model_case"), tmp_path / f"{version}.jsonl")
    analysis = analyze(open_capture([tmp_path / f"{version}.jsonl" for version in ("0.32.0", "0.28.0")]))
    causes = {each.pattern: each.cause for each in analysis.sequences}
    assert [each.lost.get("reset", 0) > 0 for each in analysis.lookups].count(True) == 1
    assert causes.keys() == {"miss-hit", "miss-miss-hit"}
    assert causes["miss-miss-hit"].startswith(
        "the state of groups 0-2 (mamba) at 9,600 was computed, but the retention"
    )
    assert causes["miss-hit"] == ""
