"""`otel-cache explain`, and the options of `analyze` that choose and that fail, as processes."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from analyzers.suggestions import instead_of
from tests.cli.test_analyze import run

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))


def test_a_story_has_the_ladder_the_groups_and_a_time_line() -> None:
    done = run("explain", "repeat-0", EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    for said in (
        "Request repeat-0 on replica-0: hit 0 of 11,910 tokens, predicted 0",
        "  11,910  11,200     710  tail",
        "  11,200   9,600   1,600  speculative_drop",
        "   9,600       0   9,600  shifted_boundary",
        "at 9,600: computed, refused by the mask",
        "cold      groups 0, 1, 2 of the chunk 8,000 to 9,600: refused 9600",
        "looked up 11,910 tokens, hit 0, and was admitted with 0",
    ):
        assert said in done.stdout, done.stdout
    times = [float(line.split()[0].replace(",", "")) for line in done.stdout.split("what\n")[1].splitlines()
             if line.startswith("  ") and line.split()[0][0] in "+-" and line.split()[0][1:2].isdigit()]  # fmt: skip
    assert times == sorted(times)
    assert times[0] < 0 < times[-1]


def test_the_story_of_a_hit_says_who_left_what_it_hit() -> None:
    """`repeat-0` computed 9,600 a second time, and then all groups kept it."""
    said = " ".join(run("explain", "repeat-1", EXAMPLE).stdout.split())
    assert "The state that it hit in groups 0, 1, 2, 3 was left by repeat-0 in its chunk 8,000 to 9,600, " in said
    assert "repeat-0 groups 0, 1, 2, 3 of the chunk 8,000 to 9,600: stored 9600" in said
    assert "The state that it hit" not in run("explain", "repeat-0", EXAMPLE).stdout


def test_the_example_needs_no_capture() -> None:
    done = run("explain", "repeat-0", "--example")
    assert (done.returncode, done.stdout) == (0, run("explain", "repeat-0", EXAMPLE).stdout)
    for words, said in (
        (["repeat-0"], "give a capture (CAPTURE), or --example"),
        (["repeat-0", str(EXAMPLE), "--example"], "CAPTURE and --example are both given"),
    ):
        done = run("explain", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_a_request_that_is_not_there() -> None:
    """Of few requests all are told."""
    for name in ("repeat-9", "rep", "x"):
        done = run("explain", name, EXAMPLE)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"Error: {name}: the capture has no lookup of a request with this id; "
            "there are cold, repeat-0, repeat-1, repeat-2\n"
        )


NAMES = [f"repeat-{index}" for index in range(20)] + ["cold", "repeat-0"]


@pytest.mark.parametrize(
    ("name", "known", "says"),
    [
        ("x", [], ""),
        ("x", ["a", "a"], "there is only a"),
        ("repeat", NAMES[:8], f"there are {', '.join(NAMES[:8])}"),
        ("repeat-1", NAMES[2:], "did you mean repeat-10, repeat-11 or repeat-12?"),
        ("colt", NAMES, "did you mean cold?"),
        ("zzz", NAMES, "there are repeat-0, repeat-1, repeat-2 and 18 more"),
    ],
)
def test_what_is_said_in_the_place_of_a_name(name: str, known: list[str], says: str) -> None:
    """Of few names all; of many what is near is a guess, and said to be one."""
    assert instead_of(name, known) == says


def test_a_request_without_a_name() -> None:
    done = run("explain", "", EXAMPLE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: an empty REQUEST: is a variable unset?\n"


@pytest.mark.parametrize(("rules", "code"), [("evicted", 0), ("shifted-boundary", 1), ("evicted, shifted-boundary", 1)])
def test_fail_on(rules: str, code: int) -> None:
    """The report is written either way."""
    done = run("analyze", EXAMPLE, "--fail-on", rules)
    assert done.returncode == code
    assert "Of 47,640 prompt tokens" in done.stdout
    said = "--fail-on: there is a finding of shifted-boundary\n" if code else ""
    assert done.stderr == run("-q", "analyze", EXAMPLE, "--fail-on", rules).stderr == said


def test_fail_on_a_rule_that_does_not_exist() -> None:
    done = run("analyze", EXAMPLE, "--fail-on", "shifted_boundary")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no rule 'shifted_boundary'; there are" in done.stderr


def chosen(*options: str) -> list[str]:
    """Return the lookups of a report with these options."""
    done = run("analyze", EXAMPLE, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    return [lookup["request_id"] for lookup in json.loads(done.stdout)["lookups"]]


def test_a_choice_of_lookups() -> None:
    everything = ["cold", "repeat-0", "repeat-1", "repeat-2"]
    assert chosen() == chosen("--replica", "replica-0") == chosen("--family", "repeat-2") == everything
    assert chosen("--since", "0s", "--until", "0s") == ["cold"]
    assert chosen("--since", "1ms") == everything[1:]
    assert chosen("--since", "2100-01-01") == chosen("--until", "2000-01-01T00:00:00+02:00") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--since", "yesterday"], "--since yesterday: neither a time such as"),
        (["--until", "10"], "--until 10: neither"),
        (["--replica", "r9"], "--replica r9: not in the capture; there is only replica-0"),
        (["--family", "x"], "--family x: no request of the capture has this id"),
        (["--since", "2s", "--until", "1s"], "--since 2s is later than --until 1s: no lookup lies between them"),
        (["--since", "2100-01-01", "--until", "1h"], "--since 2100-01-01 is later than --until 1h"),
    ],
)
def test_a_choice_that_is_none(options: list[str], said: str) -> None:
    done = run("analyze", EXAMPLE, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_where_no_lookup_is_chosen_a_note_says_so() -> None:
    """With the times of those that there are: the example's lie within 10 ms."""
    done = run("analyze", EXAMPLE, "--since", "10m", "--replica", "replica-0")
    assert done.returncode == 0
    assert done.stderr.startswith(
        "note: no lookup of the capture is chosen by --since 10m --replica replica-0: it has 4, the first at 20"
    )
    assert done.stderr.endswith("0.008 s later\n")
    first, last = done.stderr.split("first at ")[1].split(",")[0], done.stderr.split("last at ")[1].split(",")[0]
    assert chosen("--since", first) == ["cold", "repeat-0", "repeat-1", "repeat-2"]
    assert chosen("--until", last)[:1] == ["cold"]
    assert run("-q", "analyze", EXAMPLE, "--since", "10m").stderr == ""


def test_a_gate_that_saw_nothing_is_not_green(tmp_path: Path) -> None:
    """Neither where the options choose nothing, nor where the capture has no lookup: and nothing is written."""
    done = run("analyze", EXAMPLE, "--since", "10m", "--fail-on", "evicted", "--output", tmp_path / "report")
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr.startswith("Error: no lookup of the capture is chosen by --since 10m: it has 4, ")
    assert "--fail-on has nothing to judge" in done.stderr
    line = next(each for each in EXAMPLE.read_text().splitlines() if "vllm.scheduler.step" in each)
    data = json.loads(line)
    for resource in data["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            scope["spans"] = [span for span in scope["spans"] if span["name"] == "vllm.scheduler.step"]
    (tmp_path / "steps.jsonl").write_text(json.dumps(data) + "\n")
    done = run("analyze", tmp_path / "steps.jsonl", "--fail-on", "evicted")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: the capture has no lookup. --fail-on has nothing to judge, which is no pass\n"


def test_top() -> None:
    assert "What would give most back" in run("analyze", EXAMPLE).stdout
    assert "What would give most back" not in run("analyze", EXAMPLE, "--top", "0").stdout


@pytest.mark.parametrize("rest", [["repeat-0"], ["repeat-0", "cold"], ["--example"]])
def test_a_capture_in_place_of_the_request_is_said(rest: list[str]) -> None:
    done = run("explain", EXAMPLE, *rest)
    assert done.returncode == 2
    assert f"{EXAMPLE} is a file: the request comes first, then the captures" in " ".join(done.stderr.split())
