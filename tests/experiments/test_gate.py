"""The stop rule: what holds, what does not, and what cannot be told; the exit code says which."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Labs
from docs.markdown import blocks, read
from lab.cases import shipped

from analyzers.analysis import analyze
from analyzers.readers import open_capture
from analyzers.reporters.json import to_object
from experiments.commands import command
from otel_cache.semconv import names

EXAMPLE = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Return the report of the model case: the first repeat misses at 9,600, the others hit."""
    return to_object(analyze(open_capture([EXAMPLE])))


def check(folder: Path, report: dict[str, Any], policy: dict[str, Any], *more: object) -> tuple[int, dict[str, str]]:
    """Return the exit code of `check`, and the outcome of each rule."""
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    done = command("check", "--policy", folder / "policy.yaml", folder / "report.json", "--format", "json", *more)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert {"pass": 0, "fail": 1, "unknown": 2}[found["outcome"]] == done.returncode
    return done.returncode, {rule["rule"]: rule["outcome"] for rule in found["rules"]}


def cured(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report as it is where the first repeat hits."""
    found = copy.deepcopy(report)
    lookup = found["lookups"][1]
    lookup["hit_tokens"] += lookup["lost"].pop("shifted_boundary")
    found["findings"] = []
    return found


def test_the_first_repeat(tmp_path: Path, example: dict[str, Any]) -> None:
    """It fails in the model case, and holds once the repeat hits; with no valid repeat nothing can be told."""
    assert check(tmp_path, example, {"first_repeat": {}}) == (1, {"first_repeat": "fail"})
    assert check(tmp_path, example, {"first_repeat": {"slack_tokens": 9600}}) == (0, {"first_repeat": "pass"})
    assert check(tmp_path, cured(example), {"first_repeat": {}}) == (0, {"first_repeat": "pass"})
    crowded = copy.deepcopy(example)
    for lookup in crowded["lookups"][1:]:
        lookup["lost"]["evicted"] = 1
    assert check(tmp_path, crowded, {"first_repeat": {}}) == (2, {"first_repeat": "unknown"})
    holed = copy.deepcopy(example)
    holed["lookups"][1]["lost"] = {"unknown": 11910}
    assert check(tmp_path, holed, {"first_repeat": {}}) == (2, {"first_repeat": "unknown"})


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ({"occupancy": {"at_most": 0.03}}, "pass"),  # 7 blocks of attention and 3 Mamba states of 400
        ({"occupancy": {"at_most": 0.02}}, "fail"),
        ({"evictions": {"at_most_blocks": 0, "at_most_share": 0}}, "pass"),
        ({"warm_conversations": {"at_least": 1, "two_longest_tokens": 11910}}, "pass"),
        ({"warm_conversations": {"at_least": 2}}, "fail"),
        ({"warm_conversations": {"two_longest_tokens": 11911}}, "fail"),
        ({"findings": {"none_of": ["evicted"]}}, "pass"),
        ({"findings": {"none_of": ["evicted", "shifted-boundary"]}}, "fail"),
        ({"settings": {names.VLLM_VERSION: "0.28.0", names.NUM_BLOCKS: 400}}, "pass"),
        ({"settings": {names.RETENTION_INTERVAL: "1600"}}, "fail"),
        ({"recorded": [names.VLLM_VERSION, names.RETENTION_INTERVAL]}, "pass"),
        ({"recorded": True}, "pass"),  # a release is of the commit that has its tag
        ({"recorded": [names.VLLM_COMMIT]}, "fail"),  # vLLM built for CPUs does not say it
    ],
)
def test_limits(tmp_path: Path, example: dict[str, Any], policy: dict[str, Any], outcome: str) -> None:
    """Each rule on the model case."""
    (rule,) = policy
    assert check(tmp_path, example, policy)[1] == {rule: outcome}


def test_a_pool_that_was_full_between_the_moments(tmp_path: Path, example: dict[str, Any]) -> None:
    """A report has 60 moments of a pool at most; the most that it cached at once counts, whichever those are."""
    (pool,) = example["capacity"]
    most = max(sum(moment["blocks"]) for moment in pool["occupancy"])
    assert most == pool["cached_most"]  # here no moment was left out
    missed = copy.deepcopy(example)
    missed["capacity"][0]["occupancy"] = [each for each in pool["occupancy"] if sum(each["blocks"]) < most]
    assert missed["capacity"][0]["occupancy"]
    limit = (most - 0.5) / pool["num_blocks"]
    for report in (example, missed):
        assert check(tmp_path, report, {"occupancy": {"at_most": limit}}) == (1, {"occupancy": "fail"})
        assert f"cached {most / pool['num_blocks']:.1%} of" in says(tmp_path, report, {"occupancy": {"at_most": limit}})


@pytest.mark.parametrize(
    ("version", "commit", "outcome"),
    [
        ("0.32.0", "", "pass"),
        ("0.32.0rc1", "", "pass"),
        ("0.32.0+cu129", "", "pass"),
        ("0.32.1.dev5+g4ba787ec9", "", "pass"),
        ("0.32.1.dev5+g4ba787ec9.cu129", "", "pass"),
        ("0.32.1.dev5", "", "fail"),
        ("0.32.1.dev5+gpu", "", "fail"),
        ("unknown", "", "fail"),
        ("unknown", "4ba787ec9", "pass"),
        ("", "4ba787ec9", "fail"),
    ],
)
def test_the_commit(tmp_path: Path, example: dict[str, Any], version: str, commit: str, outcome: str) -> None:
    """It is recorded, or the version says which one it is."""
    report = copy.deepcopy(example)
    report["replicas"][0]["settings"] |= {names.VLLM_VERSION: version, names.VLLM_COMMIT: commit}
    assert check(tmp_path, report, {"recorded": True})[1] == {"recorded": outcome}


def says(folder: Path, report: dict[str, Any], policy: dict[str, Any]) -> str:
    """Return what is said of the one rule of the policy."""
    check(folder, report, policy)
    done = command("check", "--policy", folder / "policy.yaml", folder / "report.json", "--format", "json")
    (rule,) = json.loads(done.stdout)["rules"]
    return str(rule["says"])


def test_what_is_said(tmp_path: Path, example: dict[str, Any]) -> None:
    """Of what is recorded the names, and only those; of conversations their number, in words that fit it."""
    wanted = [names.VLLM_VERSION, names.RETENTION_INTERVAL]
    assert says(tmp_path, example, {"recorded": wanted}) == f"recorded are {', '.join(wanted)}"
    everything = says(tmp_path, example, {"recorded": True})
    assert names.SPECULATIVE_METHOD in everything
    assert everything.endswith("; the commit is that of vLLM 0.28.0, whose build does not say it")
    policy = {"warm_conversations": {"at_least": 2}}
    one = "1 conversation stayed warm at once, with 11,910 tokens; at least 2 and"
    assert says(tmp_path, example, policy).startswith(one)
    cold = copy.deepcopy(example)
    cold["capacity"][0] |= {"warm": 0, "longest": []}
    assert says(tmp_path, cold, policy).startswith("0 conversations stayed warm at once; at least 2 and")


@pytest.mark.vllm
def test_the_policy_to_begin_with(lab: Labs, tmp_path: Path, example: dict[str, Any]) -> None:
    """That of the page: it holds for a capture of the lab on a vLLM that hits, and not for the example's."""
    text, *_ = blocks(read("docs/experiments.md"), "yaml")
    policy = yaml.safe_load(text)
    lab["0.32.0"].run(shipped("model_case"), tmp_path / "spans.jsonl")
    (tmp_path / "policy.yaml").write_text(text)
    done = command("check", "--policy", tmp_path / "policy.yaml", tmp_path / "spans.jsonl")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert check(tmp_path, example, policy)[1] == {
        "first_repeat": "fail", "evictions": "pass", "findings": "fail", "recorded": "pass",
    }  # fmt: skip


def test_evictions_and_missing_records(tmp_path: Path, example: dict[str, Any]) -> None:
    """Evictions are counted over all groups; with records missing they cannot be."""
    report = copy.deepcopy(example)
    for group in report["capacity"][0]["groups"]:
        group["evicted"] = 1
    assert check(tmp_path, report, {"evictions": {"at_most_blocks": 4}})[0] == 0
    assert check(tmp_path, report, {"evictions": {"at_most_blocks": 3}})[0] == 1
    assert check(tmp_path, report, {"evictions": {"at_most_share": 0.1}})[0] == 1
    report["coverage"]["missing_records"] = 1
    assert check(tmp_path, report, {"evictions": {"at_most_blocks": 3}})[0] == 2
    assert check(tmp_path, report, {"findings": {"none_of": ["evicted"]}})[0] == 2


def test_a_report_on_no_lookup_is_no_pass(tmp_path: Path) -> None:
    """As `analyze --since 10m --format json` writes it of a shorter capture."""
    done = command("-q", "analyze", EXAMPLE, "--since", "10m", "--format", "json")
    assert check(tmp_path, json.loads(done.stdout), {"findings": {"none_of": ["evicted"]}}) == (
        2, {"findings": "unknown"},
    )  # fmt: skip


def test_a_failure_counts_for_more_than_what_cannot_be_told(tmp_path: Path, example: dict[str, Any]) -> None:
    """With both it is a failure."""
    policy = {"first_repeat": {}, "outputs_equal": True}
    assert check(tmp_path, example, policy) == (1, {"first_repeat": "fail", "outputs_equal": "unknown"})
    assert check(tmp_path, cured(example), policy)[0] == 2


def test_outputs(tmp_path: Path, example: dict[str, Any]) -> None:
    """Those of a probe: of the probed server's own answers, and of a control's against them."""
    policy, path = {"outputs_equal": True}, tmp_path / "probe.json"

    def judged(own: bool, control: bool | None) -> int:
        probed = {"role": "probed", "outputs": {"equal": own, "compared": 3, "by": "tokens"}}
        against = None if control is None else {"equal": control, "compared": 4, "by": "tokens"}
        servers = [probed | {"outputs_against_probed": None}]
        if against:
            servers.append({"role": "control", "outputs": probed["outputs"], "outputs_against_probed": against})
        path.write_text(json.dumps({"servers": servers}))
        return check(tmp_path, example, policy, "--probe", path)[0]

    assert judged(True, True) == 0
    assert judged(True, False) == 1
    assert judged(False, True) == 1
    assert judged(True, None) == 2
    assert check(tmp_path, example, policy)[0] == 2


def test_forms(tmp_path: Path) -> None:
    """Of a capture, in text and in Markdown."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("first_repeat:\nrecorded: [vllm.version]\n")
    done = command("check", "--policy", policy, EXAMPLE)
    assert (done.returncode, done.stderr) == (1, "")
    assert "Verdict: FAIL" in done.stdout
    assert "hit 0, the boundary is 9,600" in " ".join(done.stdout.split())
    out = tmp_path / "verdict.md"
    done = command("check", "--policy", policy, EXAMPLE, "--format", "markdown", "--output", out)
    assert (done.returncode, done.stdout) == (1, "")
    assert out.read_text().startswith("**Prefix cache: FAIL**")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a policy is a mapping with rules"),
        ("first: {}\n", "first: unknown key; did you mean first_repeat?"),
        (
            "first_repeat: {shapes: [divergence]}\n",
            "first_repeat.shapes[0]: unknown value 'divergence'; there are identical, extension",
        ),
        ("first_repeat: {shapes: []}\n", "first_repeat.shapes: nothing is asked for"),
        ("evictions: {}\n", "evictions: nothing is asked for, so nothing would be judged; give at_most_blocks"),
        ("warm_conversations: {at_least: 0}\n", "warm_conversations: nothing is asked for"),
        ("findings: {none_of: []}\n", "findings.none_of: nothing is asked for"),
        ("settings: {}\n", "settings: nothing is asked for"),
        ("settings: {vllm.kv_cache.retention_intervall: 1}\n", "did you mean vllm.kv_cache.retention_interval?"),
        ("recorded: []\n", "recorded: nothing is asked for"),
        ("recorded: [vllm.comit]\n", "recorded: no attribute 'vllm.comit'; did you mean vllm.commit?"),
        ("occupancy: {at_most: 2}\n", "occupancy.at_most"),
        ("occupancy: {}\n", "occupancy.at_most: missing"),
        ("findings: {none_of: [nothing]}\n", "findings.none_of: no rule 'nothing'"),
        ("findings: {none_of: [shifted_boundary]}\n", "Did you mean 'shifted-boundary'?"),
        ("outputs_equal: null\n", "no rule is on"),
        ("first_repeat: [\n", "not YAML"),
    ],
)
def test_policies_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    """One sentence that names the place; exit code 2."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    done = command("check", "--policy", policy, EXAMPLE)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_cannot_be(tmp_path: Path) -> None:
    """No such policy, capture or probe."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("first_repeat: {}\n")
    for arguments in (
        ("--policy", tmp_path / "none.yaml", EXAMPLE),
        ("--policy", policy, tmp_path / "none.jsonl"),
        ("--policy", policy, EXAMPLE, "--probe", tmp_path / "none.json"),
    ):
        done = command("check", *arguments)
        assert done.returncode == 2
        assert "none" in done.stderr
        assert "Traceback" not in done.stderr
