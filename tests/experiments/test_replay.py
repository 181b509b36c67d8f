"""A capture's own requests, sent again: under its own settings its own hits, under others what would have been."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis.strategies import scenarios
from conftest import Labs
from hypothesis import HealthCheck, given, settings
from lab.cases import HYBRID, MTP, request, scenario, shipped
from vllm_versions import VERSIONS, lane_folder

from analyzers.analysis import analyze
from analyzers.experiments.compare import compare
from analyzers.experiments.engine import engine_of
from analyzers.experiments.inputs import SAME, load_work
from analyzers.experiments.requests import recorded
from analyzers.readers import open_capture
from analyzers.reporters.json import to_object
from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.scenario import Scenario
from experiments.commands import command
from otel_cache.errors import LabError

EXAMPLE = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"
EXAMPLES = 12
TIGHT = {"groups": HYBRID, "block_size": 160, "max_num_batched_tokens": 500, "num_gpu_blocks": 60}


def replayed(path: Path) -> Scenario:
    """Return the requests of a capture on its own engine."""
    capture = open_capture([path])
    found = recorded(capture)
    return Scenario(engine_of(capture), tuple(found.requests), len(found.replicas))


def told(result: LabResult) -> dict[str, Any]:
    """Return what vLLM said of each request."""
    return {
        each.request_id: (each.prompt_tokens, each.hit_tokens, each.chunks, each.resumed_hit_tokens)
        for each in result.requests
    }


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_any_scenario_gives_its_own_hits(lab: Labs, bare_lab: Labs, version: str) -> None:
    """Layouts, overlap, preemption, keys, replicas and async scheduling in every mixture: request for request."""
    ran = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(scenarios())
    def holds(drawn: dict[str, Any]) -> None:
        nonlocal ran
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "spans.jsonl"
            try:
                said = lab[version].run(drawn, out)
            except LabError:
                return
            again = bare_lab[version].run(replayed(out))
        assert told(again) == told(said)
        ran += 1

    holds()
    assert ran > EXAMPLES // 2


CASES: Mapping[str, dict[str, Any]] = {
    "a conversation": scenario(
        [
            request("first", ("x", 900), output_tokens=40),
            request("turn", ("x", 900), ("output:first", 40), ("question", 100)),
        ],
        num_gpu_blocks=100,
    ),
    "keys": scenario(
        [
            request("plain", ("x", 1000)),
            request("salted", ("x", 1000), cache_salt="s"),
            request("adapted", ("x", 1000), lora="l", times=2),
            request("unread", ("x", 1000), skip_prefix_cache=True),
        ],
    ),
    "a client that goes, stops and a reset": {
        "engine": {**TIGHT, "async_scheduling": True, "max_num_seqs": 2, "speculative": MTP},
        "replicas": 2,
        "requests": [
            request("a", ("x", 1000), times=2, replica=0),
            request("b", ("x", 900), ("u", 50), replica=1),
            request("gone", ("x", 800), ("z", 300), delay=1, abort_after=3, **{"with": "b"}),
            request("stopped", ("x", 1000), times=3, stop_after=2, output_tokens=9),
            request("empty", ("x", 960), reset=True),
        ],
    },
    "preempted": scenario(
        [
            request("a", ("a", 700), output_tokens=100),
            request("b", ("b", 700), output_tokens=100, **{"with": "a"}),
            request("again", ("a", 700)),
        ],
        num_gpu_blocks=97,
    ),
    "images": scenario(
        [
            request("one", ("x", 1000), items=[{"content": "cat", "offset": 300, "tokens": 64}]),
            request("same", ("x", 1000), items=[{"content": "cat", "offset": 300, "tokens": 64}]),
            request("other", ("x", 1000), items=[{"content": "dog", "offset": 300, "tokens": 64}]),
        ],
    ),
}


@pytest.mark.vllm
@pytest.mark.parametrize("case", CASES)
def test_a_case_gives_its_own_hits(lab: Labs, bare_lab: Labs, tmp_path: Path, case: str) -> None:
    """Answers in prompts, keys, ends of every kind, preemption and images."""
    out = tmp_path / "spans.jsonl"
    said = lab["0.32.0"].run(CASES[case], out)
    again = bare_lab["0.32.0"].run(replayed(out))
    hits = {each.request_id: each.hit_tokens for each in said.requests}
    assert {each.request_id: each.hit_tokens for each in again.requests} == hits
    assert any(hits.values())


@pytest.mark.vllm
def test_under_another_configuration(lab: Labs, tmp_path: Path) -> None:
    """The model case of 0.28.0 at a retention interval of 1,600: what had been refused is served, and nothing else."""
    engine, out = tmp_path / "engine.yaml", tmp_path / "spans.jsonl"
    cure = shipped("model_case", prefix_cache_retention_interval=1600)["engine"]
    engine.write_text(yaml.safe_dump({"engine": cure}))
    work = load_work(EXAMPLE, engine)
    said = lab["0.28.0"].run(work.scenario, out)
    assert said.hits == [0, 9600, 9600, 9600]
    found = compare(to_object(analyze(open_capture([EXAMPLE]))), to_object(analyze(open_capture([out]))))
    assert (found.went, found.came, found.others) == ({"shifted_boundary": 9600}, {}, [])
    assert found.matched == 4
    assert lab["0.28.0"].run(load_work(EXAMPLE, SAME).scenario, out).hits == [0, 0, 9600, 9600]


@pytest.mark.vllm
def test_command(tmp_path: Path) -> None:
    """A capture alone: no file for spans is needed, and what became of the losses is on stdout."""
    done = command("lab", "run", EXAMPLE, "--engine", "same", "--vllm", lane_folder("0.28.0"))
    assert done.returncode == 0, done.stderr
    assert "No request lost more or less than before" in done.stdout
    assert "4 requests compared" in done.stdout


@pytest.mark.vllm
@pytest.mark.parametrize(("vllm", "noted"), [((), True), (("--vllm", lane_folder("0.28.0")), False)])
def test_a_sweep_on_another_vllm_says_so(vllm: tuple[Any, ...], noted: bool) -> None:
    """The same engine on another version has other hits: whoever compares with the capture has to know."""
    done = command("lab", "sweep", EXAMPLE, "--engine", "same", "--retention-interval", "0", *vllm)
    assert done.returncode == 0, done.stderr
    assert ("the capture is of vLLM 0.28.0, what was run here is" in done.stderr) is noted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([EXAMPLE], "is a capture; name the engine to run it on"),
        (["model_case"], "Missing option '--out'"),
        (["model_case", "--engine", "same", "--out", "x.jsonl"], "is no capture"),
        (["none.yaml", "--out", "x.jsonl"], "none.yaml: no such file"),
        ([EXAMPLE, "--engine", "none.yaml"], "none.yaml: no such file"),
        ([EXAMPLE, "--engine", "same", "--out", EXAMPLE], "is one of the inputs"),
    ],
)
def test_what_cannot_be(arguments: list[object], message: str) -> None:
    """One sentence; exit code 2; nothing has been written."""
    done = command("lab", "run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not Path("x.jsonl").exists()


def test_the_engine_of_a_capture() -> None:
    """Groups, interval, pool and speculation are those of the example."""
    engine = engine_of(open_capture([EXAMPLE]))
    assert [group.kind for group in engine.groups] == ["mamba"] * 3 + ["full_attention"]
    assert (engine.prefix_cache_retention_interval, engine.num_gpu_blocks) == (0, 400)
    assert engine.speculative
    assert (engine.speculative.method, engine.speculative.num_speculative_tokens) == ("mtp", 2)
