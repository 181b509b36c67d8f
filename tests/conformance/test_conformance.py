"""Every vLLM version behaves as it is known to, with both schedulers, and every hit is predicted from the evidence.

The hits were measured on vLLM's own scheduler, without the instrumentation. `make conformance` runs this for all
versions that otel-cache is tested with, `make test` for three of them.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from analysis.checks import analyzed, hits
from conftest import Labs
from docs.markdown import read, rows, sections
from lab.cases import resent, shipped
from vllm_versions import VERSIONS

pytestmark = pytest.mark.vllm


def version_tuple(version: str) -> tuple[int, ...]:
    """Return `0.28.0` as (0, 28, 0)."""
    return tuple(int(part) for part in version.split("."))


def model_case(version: str, retention: int | str, speculative: bool) -> list[int]:
    """Return the hits of 11,910 tokens, sent three times, in blocks of 1,600.

    Without speculation the last boundary is in reach. With it one block is dropped, up to 0.32; where the mask keeps
    only the last boundary, the first resend misses up to 0.29.
    """
    if not speculative or version_tuple(version) >= (0, 33):
        return [0, 11200, 11200]
    sparse = retention == 0 and version_tuple(version) < (0, 30)
    return [0, 0 if sparse else 9600, 9600]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("retention", ["default", "dense", 0, 1600])
@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_model_case(
    lab: Labs, tmp_path: Path, version: str, speculative: bool, retention: int | str, asynchronous: bool
) -> None:
    """Hits per version, speculation, retention and scheduler."""
    engine: dict[str, Any] = {"prefix_cache_retention_interval": retention, "async_scheduling": asynchronous}
    if not speculative:
        engine["speculative"] = None
    case = shipped("model_case", **engine) | {"requests": resent(11910)}
    analysis = analyzed(lab[version], case, tmp_path / "spans.jsonl")
    assert hits(analysis) == model_case(version, retention, speculative)
    assert analysis.replicas["replica-0"]["otel_cache.vllm_support"] == "tested"


@pytest.mark.parametrize("version", VERSIONS)
def test_retention_as_in_effect(lab: Labs, tmp_path: Path, version: str) -> None:
    """The default interval: dense up to 0.28; in 0.29 dense with speculation only; 0 from 0.30 on."""
    seen = []
    for speculative in (True, False):
        engine: dict[str, Any] = {"prefix_cache_retention_interval": "default"}
        if not speculative:
            engine["speculative"] = None
        case = shipped("model_case", **engine) | {"requests": resent(3000)}
        analysis = analyzed(lab[version], case, tmp_path / "spans.jsonl")
        seen.append(analysis.replicas["replica-0"]["vllm.kv_cache.retention_interval"])
    minor = version_tuple(version)[1]
    assert seen == (["dense"] * 2 if minor <= 28 else ["dense", "0"] if minor == 29 else ["0"] * 2)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_that_fills_its_last_block(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """6,400 = 4 * 1,600 tokens, retention 0, no speculation: a resend can use 4,800, which 0.32 keeps first."""
    engine = {"prefix_cache_retention_interval": 0, "speculative": None, "async_scheduling": asynchronous}
    case = shipped("model_case", **engine) | {"requests": resent(6400)}
    first = 4800 if version_tuple(version) >= (0, 32) else 0
    assert hits(analyzed(lab[version], case, tmp_path / "spans.jsonl")) == [0, first, 4800]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_early_branch(lab: Labs, tmp_path: Path, version: str, asynchronous: bool) -> None:
    """A prompt that leaves an earlier one just before its last aligned boundary misses in every version."""
    case = shipped("early_branch", async_scheduling=asynchronous)
    hit = 9600 if version_tuple(version) >= (0, 33) else 8000
    assert hits(analyzed(lab[version], case, tmp_path / "spans.jsonl")) == [0, 0, hit, hit]


def documented(version: str) -> dict[str, list[str]]:
    """Return the cells of a version's rows in docs/versions.md, by the section."""
    found = {}
    for heading, part in sections(read("docs/versions.md")).items():
        for name, *cells in rows(part):
            if name == version:
                found[heading] = [cell.strip("*`") for cell in cells]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_on_versions(lab: Labs, tmp_path: Path, version: str) -> None:
    """docs/versions.md says what this version's scheduler does; bold is where a first repeat hits nothing."""
    spans = tmp_path / "spans.jsonl"

    def sent(case: dict[str, Any]) -> str:
        return " ".join(str(request.hit_tokens) for request in lab[version].run(case, spans).requests)

    def model(tokens: int = 11910, **engine: Any) -> str:
        return sent(shipped("model_case", **engine) | {"requests": resent(tokens)})

    def interval(**engine: Any) -> str:
        case = shipped("model_case", prefix_cache_retention_interval="default", **engine) | {"requests": resent(1)}
        return str(analyzed(lab[version], case, spans).replicas["replica-0"]["vllm.kv_cache.retention_interval"])

    name = "prefix_cache_retention_interval"
    told = documented(version)
    assert told["One prompt, sent again"] == [
        model(speculative=None, **{name: "default"}), *(model(**{name: value}) for value in ("default", 0, 1600)),
    ]  # fmt: skip
    assert told["Other cases"] == [model(6400, speculative=None, **{name: 0}), sent(shipped("early_branch"))]
    assert told["The retention interval"][:2] == [interval(), interval(speculative=None)]
    for cell in re.findall(r"\| (\**0 [\d *]+) (?=\|)", read("docs/versions.md")):
        assert cell.startswith("**0 0 ") == cell.endswith("**") == ("0 0 " in cell), cell
