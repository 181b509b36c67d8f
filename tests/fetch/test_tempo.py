"""Tempo's search and traces, in the shapes that Tempo gives them, become the capture that they were made of."""

from pathlib import Path
from typing import Any

import pytest

from otel_cache.semconv import names

from .servers import Server, Tempo, spans_of
from .support import EXAMPLE, example, left_in, otel_cache, report, whole

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("newer", [True, False], ids=["api/v2", "api/traces"])
@pytest.mark.parametrize("limit", [1000, 7])
def test_the_capture_comes_back(newer: bool, limit: int, tmp_path: Path, capsys: Capsys) -> None:
    """The analysis of what was fetched is that of the file, however few traces a search gives."""
    with Server(Tempo(example(), newer=newer)) as server:
        code, out, err = otel_cache(
            capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", "--limit", str(limit), *whole()
        )
    assert (code, out) == (0, "")
    assert report(capsys, tmp_path / "got.jsonl") == report(capsys, EXAMPLE)
    assert left_in(tmp_path) == ["got.jsonl"]
    assert "truncated" not in err


def test_more_than_tempo_gives_at_once_is_told(tmp_path: Path, capsys: Capsys) -> None:
    """The traces of one second are more than it gives, and no window is narrower."""
    with Server(Tempo(example(), max_limit=7)) as server:
        code, _, err = otel_cache(capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", *whole())
    assert code == 0
    assert "note: truncated: Tempo gives no more than 7 traces at 20" in err


def test_limits_of_the_server_are_kept(tmp_path: Path, capsys: Capsys) -> None:
    """A Tempo that gives at most 500 traces, of a minute at most, is asked for no more."""
    with Server(Tempo(example(), max_limit=500, max_seconds=60)) as server:
        code, _, err = otel_cache(capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", *whole())
        searches = [parameters for path, parameters in server.asked if path == "/api/search"]
    assert code == 0, err
    assert report(capsys, tmp_path / "got.jsonl") == report(capsys, EXAMPLE)
    taken = [each for each in searches if int(each["end"]) - int(each["start"]) <= 60]
    assert {int(each["limit"]) for each in taken} <= {500, 1000}
    assert len(searches) <= 2 * 180 + 20


def test_what_is_not_whole_is_told(tmp_path: Path, capsys: Capsys) -> None:
    """A trace that Tempo cut off, one that it has no more, and the evidence that is missing by its numbers."""
    tempo = Tempo(example())
    first, second = trace_with(tempo, names.STEP), trace_with(tempo, names.LOOKUP)
    tempo.partial, tempo.gone = {first}, {second}
    with Server(tempo) as server:
        code, _, err = otel_cache(capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", *whole())
    assert code == 0
    assert f"note: trace {first}: Tempo gives a part of it (Trace exceeds maximum size of 5000000 bytes" in err
    assert f"note: trace {second}: Tempo found it and has it no more" in err


def test_a_trace_that_is_too_large_for_an_older_tempo(tmp_path: Path, capsys: Capsys) -> None:
    """The others are fetched."""
    tempo = Tempo(example(), newer=False)
    tempo.too_large = {trace_with(tempo, names.LOOKUP)}
    with Server(tempo) as server:
        code, _, err = otel_cache(capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", *whole())
    assert code == 0
    assert "Tempo does not give it (trace exceeds max size" in err
    assert "by their numbers" in err


def trace_with(tempo: Tempo, name: str) -> str:
    """Return the id of the second trace that holds a span of this name: what it lacks is noticed by the numbers."""
    found = [one for one, message in tempo.traces.items() if any(span["name"] == name for _, span in spans_of(message))]
    return found[1]


def test_services(tmp_path: Path, capsys: Capsys) -> None:
    """One that is not there is told, with those that are."""
    out = tmp_path / "got.jsonl"
    with Server(Tempo(example())) as server:
        asked = ["fetch", "tempo", server.url, "--out", out, *whole()]
        assert otel_cache(capsys, *asked, "--service", "vllm")[0] == 0
        out.unlink()
        code, _, err = otel_cache(capsys, *asked, "--service", 'x" || true || "')
    assert code == 2
    assert 'Tempo has no service x" || true || "' in err
    assert "it has vllm" in err
    assert left_in(tmp_path) == []


def test_nothing_there(tmp_path: Path, capsys: Capsys) -> None:
    """An empty answer is told, and leaves no file."""
    with Server(Tempo([])) as server:
        code, _, err = otel_cache(capsys, "fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl")
    assert code == 2
    assert "Tempo has no span of otel_cache from" in err
    assert left_in(tmp_path) == []


def test_the_tenant_is_named(tmp_path: Path, capsys: Capsys) -> None:
    """As Tempo wants it; without one a Tempo of many tenants says so."""

    def answer(path: str, parameters: Any) -> Any:
        if "X-Scope-OrgID" not in server.headers[-1]:
            return 401, "no org id"
        return tempo(path, parameters)

    tempo = Tempo(example())
    with Server(answer) as server:
        asked = ["fetch", "tempo", server.url, "--out", tmp_path / "got.jsonl", *whole()]
        assert otel_cache(capsys, *asked, "--tenant", "team-a")[0] == 0
        assert {headers["X-Scope-OrgID"] for headers in server.headers} == {"team-a"}
        code, _, err = otel_cache(capsys, *asked)
    assert code == 2
    assert "(401: no org id); name the tenant by --tenant" in err
