"""The sweep: the model case and its cure, the price of density, chunk budgets and versions, on vLLM's own scheduler."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml
from conftest import TRACE, Labs
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.cases import FULL, request, scenario, shipped
from vllm_versions import VERSIONS, lane_folder

from analyzers.experiments.choices import MULTIPLES, intervals
from analyzers.experiments.inputs import load_work
from analyzers.experiments.reuse import repeats, warm_pair
from analyzers.experiments.sweep import Axes, Measured, marked, measured_of, settings_of
from analyzers.reporters.html import sweep as page
from analyzers.reporters.sweep import render, render_markdown
from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.scenario import LabRequest, Part, Scenario, batches, parse_scenario
from analyzers.vllm_lab.tokens import output, segment
from experiments.commands import command
from otel_cache.errors import ScenarioError

TURNS = 4


def swept(labs: Labs, version: str, data: dict[str, Any], **axes: Any) -> list[Measured]:
    """Return what each setting gives, run one after the other in the version's own lab."""
    chosen = settings_of(parse_scenario(data), Axes(**axes), "the test")
    rows = [measured_of(setting, labs[version].run(msgspec.to_builtins(setting.scenario))) for setting in chosen]
    return marked(rows)


def firsts(rows: Sequence[Measured]) -> list[int]:
    """Return the hit tokens of first repeats, setting by setting."""
    return [row.first[0] for row in rows]


@pytest.mark.vllm
def test_the_model_case_and_its_cure(bare_lab: Labs) -> None:
    """On 0.28.0 the first repeat misses at interval 0 and hits 9,600 at 1,600; later repeats hit either way."""
    rows = swept(bare_lab, "0.28.0", shipped("model_case"))
    # A repeat shares 11,909 tokens: its last boundary is 11,200, the one before it 9,600.
    assert [row.varied["retention_interval"] for row in rows] == [0, 1600, 3200, 4800, 9600, 11200, "dense"]
    # A state is kept at 9,600 where the interval divides it.
    assert firsts(rows) == [0, 9600, 9600, 9600, 9600, 0, 9600]
    assert {row.later for row in rows} == {(2 * 9600, 2 * 11909)}
    assert [row.prefill for row in rows] == [4 * 11910 - hit - 2 * 9600 for hit in firsts(rows)]
    # Chunks end at 8,000 and 9,600, of which 1,600 keeps both.
    assert [row.pareto for row in rows] == [False, False, True, True, True, False, False]


def two_conversations(**engine: Any) -> dict[str, Any]:
    """Return two prompts of one length, sent in turn, in chunks of one block: density has the most to keep."""
    case = shipped("model_case", max_num_batched_tokens=1600, **engine)
    turns = [request(f"{name}{turn}", (name, 11910)) for turn in range(TURNS) for name in "ab"]
    return {**case, "requests": turns}


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_price_of_density(bare_lab: Labs, version: str) -> None:
    """Denser states take more blocks of each Mamba group; in a small pool the second conversation is warm no more."""
    axes = {"retention_interval": [9600, 4800, 1600]}
    roomy = swept(bare_lab, version, two_conversations(), **axes)
    for group in (0, 1, 2):
        kept = [row.cached[group] for row in roomy]
        assert kept == sorted(kept)
        assert kept[0] < kept[-1]
    assert len({row.cached[3] for row in roomy}) == 1
    assert [row.warm for row in roomy] == [2, 2, 2]
    small = swept(bare_lab, version, two_conversations(num_gpu_blocks=38), **axes)
    assert small[0].warm == 2
    assert sum(tokens for _, tokens in small[0].longest) == 2 * 11910
    assert small[-1].warm < 2
    assert sum(small[-1].evicted.values()) > sum(small[0].evicted.values())


@pytest.mark.vllm
def test_the_chunk_budget(bare_lab: Labs) -> None:
    """A child's boundary appears where the budget divides the prefix so that a chunk ends there.

    The children share 11,195 tokens with their parent, so that a hit can end at 9,600 on 0.33.0. Chunks of 8,192 end at
    8,000 and 11,200, those of 4,800 at 4,800 and 9,600.
    """
    case = shipped("early_branch", prefix_cache_retention_interval=1600)
    rows = swept(bare_lab, "0.33.0", case, max_num_batched_tokens=[8192, 4800])
    assert firsts(rows) == [8000, 9600]


@pytest.mark.vllm
def test_pools_and_routing(bare_lab: Labs) -> None:
    """A pool that is too small is refused in its row's place; two replicas pay for a prompt twice."""
    case = scenario([request("doc", ("doc", 1000), times=4)], FULL)
    one, two = swept(bare_lab, "0.32.0", case, replicas=[1, 2])
    assert (one.first, one.later) == ((992, 999), (2 * 992, 2 * 999))
    assert (two.first[0], two.later[0]) == (0, 2 * 992)
    # The third and the fourth are each the first repeat on their replica.
    assert (one.own, two.own) == (one.first, (2 * 992, 2 * 999))
    (sticky,) = swept(bare_lab, "0.32.0", case, replicas=[2], routing=["sticky_prefix"])
    assert (sticky.first, sticky.later) == (one.first, one.later)


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_versions_side_by_side() -> None:
    """By the command, two processes: a row for each version, and one for what vLLM refuses."""
    folders = [lane_folder("0.28.0"), "installed", lane_folder("0.33.0")]
    flags = [word for folder in folders for word in ("--vllm", folder)]
    done = command(
        "lab", "sweep", "model_case", *flags, "--num-gpu-blocks", "400,5", "--retention-interval", "0,1000",
        "--processes", 2, "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["settings"]
    ran = {row["vllm_version"]: row["first_repeat"]["hit_tokens"] for row in rows if not row["refused"]}
    assert ran == {"0.28.0": 0, "0.32.0": 9600, "0.33.0": 11200}
    assert len(rows) == 12
    assert Counter(row["vllm_version"] for row in rows) == dict.fromkeys(ran, 4)
    for row in rows:
        if row["retention_interval"] == 1000:
            assert "1000 is no multiple of the scheduler block" in row["refused"]
        elif row["num_gpu_blocks"] == 5:
            assert "too small" in row["refused"]


def case(name: str) -> Scenario:
    """Return a scenario that ships."""
    return parse_scenario(shipped(name))


def test_one_value_is_no_list() -> None:
    """What is given once is set in every row, and the retention interval is varied, unless that is what is given."""
    base = case("model_case")
    tried = [0, 1600, 3200, 4800, 9600, 11200, "dense"]
    one: dict[str, Any]
    for one in ({}, {"vllm": [None]}, {"num_gpu_blocks": [100]}, {"replicas": [2], "routing": ["round_robin"]}):
        rows = settings_of(base, Axes(**one), "the test")
        assert [row.varied["retention_interval"] for row in rows] == tried
        assert all(str(row.varied[name]) == str(values[0]) for row in rows for name, values in one.items())
    assert len(settings_of(base, Axes(retention_interval=[1600], vllm=[None]), "the test")) == 1
    assert len(settings_of(base, Axes(vllm=[None], num_gpu_blocks=[100, 400]), "the test")) == 2
    dense = parse_scenario(scenario([request("doc", ("doc", 1000), times=2)], FULL))
    assert len(settings_of(dense, Axes(vllm=[None]), "the test")) == 1
    with pytest.raises(ScenarioError, match="the test: there is nothing to vary"):
        settings_of(dense, Axes(), "the test")


@settings(deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=30), st.sampled_from([16, 528, 1600]), st.booleans())
def test_intervals(shared: list[int], block: int, speculates: bool) -> None:
    """Few, each valid and once; with one boundary to keep all that keep it, if they are few; and the densest."""
    engine = case("model_case").engine
    engine = msgspec.structs.replace(engine, block_size=block, speculative=engine.speculative if speculates else None)
    found = intervals(engine, shared)
    assert (found[0], found[1], found[-1]) == (0, block, "dense")
    multiples = [each // block for each in found[1:-1] if isinstance(each, int)]
    assert multiples == sorted(set(multiples))
    assert len(multiples) <= MULTIPLES
    wanted = {(tokens // block) - drop for tokens in shared for drop in range(1 + speculates)}
    keeping = {each for last in wanted if last > 0 for each in range(1, last + 1) if last % each == 0} | {1}
    assert set(multiples) <= keeping
    assert set(multiples) == keeping or len(multiples) == MULTIPLES


def spent(worker: LabWorker) -> float:
    """Return the seconds of CPU that the worker's process has used."""
    assert worker._child
    times = psutil.Process(worker._child.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.vllm
@pytest.mark.mooncake
def test_a_setting_costs_no_more_than_a_replay(lab: Labs, bare_lab: Labs, tmp_path: Path) -> None:
    """Eight settings over a production trace cost at most eight times one `lab run` of it, and a tenth.

    In seconds of CPU of vLLM's process, which does not depend on what else the machine does.
    """
    engine = {"block_size": 512, "max_num_batched_tokens": 131072, "groups": FULL}
    file = {"engine": engine, "output_tokens": 1, "requests": 400}
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(file))
    work = load_work(Path(os.environ[TRACE]), tmp_path / "engine.yaml").scenario
    chosen = settings_of(work, Axes(num_gpu_blocks=[2000 * n for n in range(1, 9)]), "the trace")
    assert len(chosen) == 8
    plain = msgspec.to_builtins(chosen[-1].scenario) | {"observe_cache": False}
    taken = []
    for worker, runs in ((lab["0.32.0"], [plain]), (bare_lab["0.32.0"], [each.scenario for each in chosen])):
        first = {**plain, "requests": plain["requests"][:1]}
        worker.run(first, tmp_path / "first.jsonl" if worker is lab["0.32.0"] else None)
        begin = spent(worker)
        for run in runs:
            data = run if isinstance(run, dict) else msgspec.to_builtins(run)
            worker.run(data, tmp_path / "spans.jsonl" if worker is lab["0.32.0"] else None)
        taken.append(spent(worker) - begin)
    assert taken[1] <= 8 * taken[0] * 1.1


@pytest.mark.vllm
def test_interrupted(tmp_path: Path) -> None:
    """It ends at once, with no process, no folder and no half table left, though only the command has the signal."""
    folder, out = tmp_path / "tmp", tmp_path / "table.txt"
    folder.mkdir()
    arguments = ["lab", "sweep", "model_case", "--processes", "2", "--output", str(out)]
    start = [sys.executable, "-c", "from analyzers.cli.main import main; main()", *arguments]
    process = psutil.Popen(start, env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True)
    while len(children := process.children(recursive=True)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not psutil.wait_procs(children, 10)[1]
    assert not out.exists()
    assert not list(folder.iterdir())


PARTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(PARTS, st.sampled_from([None, "s"])), min_size=1, max_size=7))
def test_repeats_by_brute_force(drawn: list[tuple[list[tuple[str, int]], str | None]]) -> None:
    """What prompts share is what their tokens share; a first repeat has one request before it that had as much."""
    engine = parse_scenario(scenario([request("x", ("x", 1))])).engine
    requests = tuple(
        LabRequest(id=f"r{i}", prompt=tuple(Part(*part) for part in parts), cache_salt=salt, output_tokens=2)
        for i, (parts, salt) in enumerate(drawn)
    )
    case = Scenario(engine, requests)
    found = repeats(case)
    sent: list[tuple[str | None, list[int]]] = []
    for batch in batches(case):
        (sending,) = batch
        asked = sending.request
        tokens = [token for part in asked.prompt for token in segment(part.segment, part.tokens)]
        common = [_common(tokens, other) for salt, other in sent if salt == asked.cache_salt]
        longest = max(common, default=0)
        assert found[sending.id].shared == min(longest, len(tokens) - 1)
        if longest:
            assert found[sending.id].first == (common.count(longest) == 1)
        sent.append((asked.cache_salt, tokens + output(sending.id, 2)))


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def test_warm_conversations() -> None:
    """By hand: `a` never hits less, `b` hits less once, `c` never hits, `d` comes when `a` is over."""
    sent = [
        ("a0", 1, 100, 0), ("b0", 2, 90, 0), ("a1", 1, 120, 80), ("b1", 2, 90, 80), ("c0", 3, 70, 0),
        ("a2", 1, 140, 80), ("b2", 2, 90, 0), ("c1", 3, 70, 0), ("d0", 4, 60, 0), ("d1", 4, 60, 50),
    ]  # fmt: skip
    assert warm_pair(sent) == (1, [("a0", 140)])
    assert warm_pair([*sent, ("a3", 1, 150, 80)]) == (2, [("a0", 150), ("d0", 60)])


def test_the_best_settings() -> None:
    """One that another beats in something and nowhere falls short of is not among them; equals both are."""
    rows = [
        Measured({"pool": 1}, first=(10, 20), cached={0: 5}),
        Measured({"pool": 2}, first=(10, 20), cached={0: 6}),
        Measured({"pool": 3}, first=(12, 20), cached={0: 9}),
        Measured({"pool": 4}, first=(12, 20), cached={0: 9}),
        Measured({"pool": 5}, refused="too small"),
    ]
    assert [row.pareto for row in marked(rows)] == [True, False, True, True, False]
    rows = [replace(row, own=row.first) for row in rows]
    for text in (render(rows), render_markdown(rows)):
        assert "50.0 %" in text
        assert "on its replica" not in text


def test_refused_rows() -> None:
    """Their reason has a place of its own, below the table; vLLM's version stands where it is known."""
    varied = {"retention_interval": 0, "vllm": "/somewhere/vllm"}
    rows = marked([
        Measured(varied, "0.28.0", first=(0, 9), own=(9, 9)),
        Measured(varied | {"retention_interval": 7}, "0.28.0", refused="7 is odd"),
        Measured(varied, refused="it is broken"),
    ])  # fmt: skip
    for text in (render(rows), render_markdown(rows)):
        table, _, below = text.partition("Refused:")
        assert "first on its replica" in table
        assert "is odd" not in table
        words = " ".join(below.split())
        assert words.startswith("retention 7, vLLM 0.28.0: 7 is odd Refused: retention 0, vLLM /somewhere/vllm: it is")
    assert "7 is odd" in page.render(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model_case", "--retention-interval", "7"], "7 is no multiple of the scheduler block"),
        (["model_case", "--retention-interval", "often"], "often: not a number or dense or default"),
        (["model_case", "--num-gpu-blocks", "0"], "has to be at least 1"),
        (["model_case", "--replicas", ","], "--replicas ',': names no value"),
        (["model_case", "--output", "nowhere/table.txt"], "--output nowhere/table.txt: there is no folder"),
        (["model_case", "--routing", "nearest"], "nearest: not round_robin or sticky_prefix"),
        (["model_case", "--vllm", "nowhere"], "holds no package vllm"),
        (["none.yaml"], "none.yaml: no such file"),
    ],
)
def test_what_cannot_be(arguments: list[str], message: str) -> None:
    """One sentence; exit code 2; nothing has been run."""
    done = command("lab", "sweep", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
