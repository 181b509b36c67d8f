"""Jaeger's two APIs, in the shapes of several versions; the real one is asked in the end-to-end tests."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_cache.semconv import names

from .servers import Jaeger, Server
from .support import EXAMPLE, example, left_in, otel_cache, report, whole

Capsys = pytest.CaptureFixture[str]


def changed(**values: Any) -> Callable[[], Jaeger]:
    """Return what makes a Jaeger with these attributes."""

    def make() -> Jaeger:
        jaeger = Jaeger(example())
        for name, value in values.items():
            setattr(jaeger, name, value)
        return jaeger

    return make


VERSIONS = {
    "2": changed(),
    "2 with little storage": changed(max_traces=3),
    "1 with a streaming gateway": changed(stream=True),
    "1 without api/v3": changed(newer=False),
    "1 without api/v3, with its page": changed(newer=False, page=True),
}


@pytest.mark.parametrize("limit", ["200", "7"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_capture_comes_back(version: str, limit: str, tmp_path: Path, capsys: Capsys) -> None:
    """Whichever API it has: all spans, and the same losses; by `/api/v3` the same report to the byte."""
    jaeger = VERSIONS[version]()
    with Server(jaeger) as server:
        code, out, err = otel_cache(
            capsys, "fetch", "jaeger", server.url, "--out", tmp_path / "got.jsonl", "--limit", limit, *whole()
        )
    assert (code, out) == (0, "")
    assert err.endswith(f" to {tmp_path / 'got.jsonl'}\n")
    assert "note:" not in err
    mine, theirs = report(capsys, tmp_path / "got.jsonl"), report(capsys, EXAMPLE)
    assert mine["coverage"]["spans"] == theirs["coverage"]["spans"]
    assert mine["tokens"] == theirs["tokens"]
    if jaeger.newer:
        assert json.dumps(mine) == json.dumps(theirs)
    assert left_in(tmp_path) == ["got.jsonl"]


def test_one_api_alone(tmp_path: Path, capsys: Capsys) -> None:
    """What is asked for is asked, and nothing else."""
    with Server(VERSIONS["2"]()) as server:
        asked = ["fetch", "jaeger", server.url, "--out", tmp_path / "got.jsonl", *whole()]
        assert otel_cache(capsys, *asked, "--api", "json")[0] == 0
        assert not [path for path, _ in server.asked if "v3" in path]
    with Server(VERSIONS["1 without api/v3"]()) as server:
        code, _, err = otel_cache(capsys, "fetch", "jaeger", server.url, "--out", tmp_path / "no.jsonl", "--api", "v3")
    assert code == 2
    assert "/api/v3/services answers 404" in err


def test_services(tmp_path: Path, capsys: Capsys) -> None:
    """Those that have none of our spans are not asked for; one that is not there is told with those that are."""
    jaeger = VERSIONS["2"]()
    for message in example():
        (resource,) = message["resourceSpans"]
        for attribute in resource["resource"]["attributes"]:
            if attribute["key"] == "service.name":
                attribute["value"] = {"stringValue": "shop"}
        spans = resource["scopeSpans"][0]["spans"][:1]
        spans[0] |= {"name": "GET /", "traceId": 32 * "a"}
        resource["scopeSpans"] = [{"scope": {"name": "http", "version": "1"}, "spans": spans}]
        jaeger.traces[32 * "a"] = message
    with Server(jaeger) as server:
        asked = ["fetch", "jaeger", server.url, "--out", tmp_path / "got.jsonl", *whole()]
        assert otel_cache(capsys, *asked)[0] == 0
        assert {each["query.service_name"] for path, each in server.asked if path == "/api/v3/traces"} == {"vllm"}
        (tmp_path / "got.jsonl").unlink()
        code, _, err = otel_cache(capsys, *asked, "--service", "vlmm")
        assert code == 2
        assert "Jaeger has no service vlmm; it has shop, vllm" in err
        code, _, err = otel_cache(capsys, *asked, "--service", "shop")
        assert code == 2
        assert "no span of otel_cache in them" in err
        code, _, err = otel_cache(capsys, "fetch", "jaeger", server.url, "--out", tmp_path / "got.jsonl")
        assert code == 2
        assert "Jaeger has the service vllm, and no trace of it from" in err
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("newer", [True, False])
def test_a_jaeger_without_any_span(newer: bool, tmp_path: Path, capsys: Capsys) -> None:
    """It is told from one that has no span of ours."""
    jaeger = Jaeger([])
    jaeger.newer = newer
    with Server(jaeger) as server:
        code, _, err = otel_cache(capsys, "fetch", "jaeger", server.url, "--out", tmp_path / "got.jsonl")
    assert code == 2
    assert "no service in this Jaeger has spans of otel_cache; it has none" in err


def test_stdout_and_files_that_cannot_be(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """`-` is stdout; a folder, a name in no folder and Parquet are refused before anything is asked."""
    from analyzers.cli import main

    with Server(VERSIONS["2"]()) as server:
        for out, says in (
            (str(tmp_path), b"a folder"),
            (str(tmp_path / "no" / "x.jsonl"), b"cannot be written"),
            (str(tmp_path / "x.parquet"), b"written as OTLP JSON lines"),
        ):
            with pytest.raises(SystemExit) as left:
                main(["fetch", "jaeger", server.url, "--out", out])
            assert left.value.code == 2
            assert says in capfdbinary.readouterr().err
        assert server.asked == []
        with pytest.raises(SystemExit) as left:
            main(["fetch", "jaeger", server.url, "--out", "-", *whole()])
        assert left.value.code == 0
    lines = capfdbinary.readouterr().out.splitlines()
    spans = [
        span
        for line in lines
        for scope in json.loads(line)["resourceSpans"][0]["scopeSpans"]
        for span in scope["spans"]
    ]
    assert {span["name"] for span in spans} >= {names.REQUEST, names.LOOKUP, names.STORE, names.STEP}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_nothing(number: int, code: int, tmp_path: Path, capsys: Capsys) -> None:
    """Half a file is none; what stood there stays."""
    out = tmp_path / "got.jsonl"
    out.write_text("earlier\n")
    jaeger = VERSIONS["2"]()
    parts: list[str] = []

    def answer(path: str, parameters: Any) -> Any:
        if path == "/api/v3/traces" and len(server.asked) > 6:
            parts.extend(left_in(tmp_path))
            os.kill(os.getpid(), number)
        return jaeger(path, parameters)

    with Server(answer) as server:
        left, _, _ = otel_cache(capsys, "fetch", "jaeger", server.url, "--out", out, "--limit", "2", *whole())
    assert left == code
    assert [name for name in parts if name.endswith(".part")]
    assert (left_in(tmp_path), out.read_text()) == (["got.jsonl"], "earlier\n")
