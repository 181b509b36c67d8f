"""A capture to fetch, and the command in this process."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from readers import otlp

from analyzers.cli import main
from analyzers.readers import open_capture
from otel_cache.semconv import names

HOUR = 3_600_000_000_000
EXAMPLE = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"


def example() -> list[dict[str, Any]]:
    """Return the messages of the capture that ships, and a worker's span, which is no part of the evidence."""
    messages = [json.loads(line) for line in EXAMPLE.read_text().splitlines()]
    step = next(
        span
        for message in messages
        for resource in message["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
        if span["name"] == names.STEP
    )
    ran = {**step, "name": names.EXECUTE, "spanId": 16 * "e", "parentSpanId": step["spanId"], "attributes": []}
    worker = otlp.resource("replica-0", "worker", **{"service.name": "vllm", names.WORKER_RANK: 0})
    messages.append(otlp.message(worker, [ran]))
    assert all(
        any(each["key"] == "service.name" for each in resource["resource"]["attributes"])
        for message in messages
        for resource in message["resourceSpans"]
    )
    return messages


def whole() -> list[str]:
    """Return the options that ask for the time of the example."""
    capture = open_capture([EXAMPLE])
    begin = min(int(frame["start"].min()) for frame in (capture.requests, capture.steps, capture.lookups))  # type: ignore[arg-type]
    hours = begin // HOUR
    return ["--since", _hour(hours - 1), "--until", _hour(hours + 2)]


def _hour(hours: int) -> str:
    return datetime.fromtimestamp(hours * 3600, UTC).isoformat()


def otel_cache(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Run a command; return its exit code, and what it wrote to stdout and stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return int(left.value.code or 0), out, err


def report(capsys: pytest.CaptureFixture[str], *paths: str | Path) -> dict[str, Any]:
    """Return the JSON report on captures."""
    code, out, _ = otel_cache(capsys, "analyze", *paths, "--format", "json")
    assert code == 0
    return dict(json.loads(out))


def left_in(folder: Path) -> Sequence[str]:
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())
