"""Before and after: every token that changed is accounted for, in text, JSON and Markdown."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.analysis import analyze
from analyzers.experiments.compare import HIT, compare
from analyzers.model import CLASSES
from analyzers.readers import open_capture
from analyzers.reporters.json import to_object
from experiments.commands import command
from otel_cache.semconv import names

EXAMPLE = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"


def report(lookups: list[dict[str, Any]], findings: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a report of these lookups."""
    lost: dict[str, int] = {}
    for lookup in lookups:
        for name, tokens in lookup["lost"].items():
            lost[name] = lost.get(name, 0) + tokens
    tokens = {key: sum(each[f"{key}_tokens"] for each in lookups) for key in ("prompt", "hit")}
    return {"lookups": lookups, "tokens": {**tokens, "lost": lost}, "findings": findings or [], "replicas": []}


def lookup(name: str, hit: int, **lost: int) -> dict[str, Any]:
    """Return a lookup that hit and lost so many tokens."""
    return {"request_id": name, "prompt_tokens": hit + sum(lost.values()), "hit_tokens": hit, "lost": lost}


def test_what_went_came_and_moved() -> None:
    """By hand: 600 tokens are served now, 100 no more, 300 are another class's."""
    before = report([lookup("a", 0, cold=100, evicted=900), lookup("b", 500, tail=100), lookup("gone", 5)])
    after = report([lookup("a", 600, cold=100, alignment=300), lookup("b", 400, tail=100, reset=100), lookup("new", 5)])
    found = compare(before, after)
    assert (found.went, found.came) == ({"evicted": 600}, {"reset": 100})
    assert [(m.before, m.after, m.tokens, m.requests) for m in found.others] == [("evicted", "alignment", 300, 1)]
    assert (found.matched, found.only_before, found.only_after) == (2, ["gone"], ["new"])
    assert [each.request_id for each in found.changed] == ["a", "b"]


@given(st.lists(st.tuples(*[st.dictionaries(st.sampled_from((HIT, *CLASSES)), st.integers(1, 999))] * 2), max_size=5))
def test_every_token_is_accounted_for(pairs: list[tuple[dict[str, int], dict[str, int]]]) -> None:
    """What moved from a class less what moved to it is by how much it lost less."""
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for index, pair in enumerate(pairs):
        whole = max(sum(parts.values()) for parts in pair)
        for side, parts in zip(sides, pair, strict=True):
            lost = {name: tokens for name, tokens in parts.items() if name != HIT}
            lost["tail"] = lost.get("tail", 0) + whole - sum(parts.values())
            side.append(lookup(f"r{index}", parts.get(HIT, 0), **lost))
    found = compare(report(sides[0]), report(sides[1]))
    for name in CLASSES:
        one, two = found.lost.get(name, (0, 0))
        away = sum(move.tokens for move in found.moved if move.before == name)
        back = sum(move.tokens for move in found.moved if move.after == name)
        assert away - back == one - two
    assert all(move.tokens > 0 and move.before != move.after for move in found.moved)


def test_captures_without_a_common_request(tmp_path: Path) -> None:
    """Live traffic before and after has new ids: nothing was compared, and it says so first."""
    other = tmp_path / "after.jsonl"
    text = EXAMPLE.read_text() if isinstance(EXAMPLE, Path) else Path(EXAMPLE).read_text()
    other.write_text(text.replace('"repeat-', '"later-').replace('"cold"', '"first"'))
    done = command("diff", EXAMPLE, other)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No request is in both captures" in done.stdout
    assert "No request lost more or less" not in done.stdout


def test_forms(tmp_path: Path) -> None:
    """A capture and its own report: nothing changed, in every form."""
    saved = tmp_path / "report.json"
    saved.write_text(json.dumps(to_object(analyze(open_capture([EXAMPLE])))))
    for arguments in ((EXAMPLE, saved), (saved, EXAMPLE)):
        done = command("diff", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "No request lost more or less than before" in done.stdout
    found = json.loads(command("diff", EXAMPLE, saved, "--format", "json").stdout)
    assert (found["went"], found["came"], found["moved"], found["settings"]) == ({}, {}, [], {})
    assert found["hit_tokens"] == {"before": 19200, "after": 19200}
    assert command("diff", EXAMPLE, saved, "--format", "markdown").stdout.startswith("| ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 7}', "no report of otel-cache analyze in schema 1"),
        ('{"schema_version": 1', "not JSON"),
        ("{}", "not"),
    ],
)
def test_what_cannot_be(tmp_path: Path, content: str, message: str) -> None:
    """One sentence; exit code 2."""
    path = tmp_path / "report.json"
    path.write_text(content)
    done = command("diff", EXAMPLE, path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_without_its_lookups(tmp_path: Path) -> None:
    """Losses of single requests cannot be compared in it."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(to_object(analyze(open_capture([EXAMPLE])), "losing")))
    done = command("diff", path, EXAMPLE)
    assert done.returncode == 2
    assert "make it with --lookups all" in done.stderr


def test_settings_read_like_settings(tmp_path: Path) -> None:
    """Lists and switches are written as users write them, not as Python has them."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    report = to_object(analyze(open_capture([EXAMPLE])))
    before.write_text(json.dumps(report))
    settings = report["replicas"][0]["settings"]
    settings |= {names.GROUPS_BLOCK_SIZE: [1600, 800], names.PARTIAL_HITS: True}
    after.write_text(json.dumps(report))
    said = " ".join(command("diff", before, after).stdout.split())
    assert f"{names.GROUPS_BLOCK_SIZE}: 1600, 1600, 1600, 1600 to 1600, 800" in said
    assert f"{names.PARTIAL_HITS}: false to true" in said
