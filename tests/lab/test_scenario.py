"""Reading scenarios: what is said, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from analyzers.vllm_lab.scenario import batches, find_scenario, load_scenario, parse_scenario
from analyzers.vllm_lab.tokens import output, segment
from analyzers.vllm_lab.workload import load_engine, load_workload
from lab.cases import FULL, HYBRID, MTP, request, resent, scenario, shipped
from otel_cache.errors import ScenarioError

Change = Callable[[dict[str, Any]], None]


def test_every_key() -> None:
    """The whole format is read."""
    data = scenario(
        [
            request("cold", ("doc", 100), output_tokens=5),
            request(
                "repeat",
                ("doc", 100),
                ("q", 7),
                times=3,
                replica=1,
                delay=2,
                cache_salt="s",
                lora="l",
                lora_path="/l",
                items=[{"content": "cat", "offset": 10, "tokens": 20}],
                skip_prefix_cache=True,
                session_id="s",
                trace_headers={"traceparent": "00-0"},
                stop_after=2,
                abort_after=9,
                **{"with": "cold"},
            ),
        ],
        [
            {"kind": "mamba", "layers": 3, "block_size": 1600},
            {"kind": "sliding_window", "window": 64, "block_size": 64},
            {"kind": "full_attention", "draft": True},
        ],
        replicas=2,
        block_size=16,
        prefix_match_unit=8,
        prefix_cache_retention_interval=3200,
        max_num_batched_tokens=4096,
        num_gpu_blocks=7,
        max_num_seqs=3,
        max_model_len=5000,
        async_scheduling=True,
        speculative=MTP | {"accepted_tokens": 1},
        connector={"class": "Mine", "module_path": "mine", "folder": "/f", "extra": {"a": 1}},
        vocabulary=1 << 30,
    )
    data["observe_cache"] = True
    read = parse_scenario(data)
    assert read.engine.block_sizes() == [1600, 1600, 1600, 64, 16]
    assert [group.draft for group in read.engine.group_list()] == [False, False, False, False, True]
    assert read.engine.speculative is not None
    assert read.engine.speculative.accepted_tokens == 1
    assert read.requests[1].prompt_tokens == 107
    assert read.requests[1].with_ == "cold"
    assert read.requests[1].items[0].content == "cat"


@pytest.mark.parametrize("name", ["model_case", "early_branch"])
def test_shipped_scenarios(name: str) -> None:
    """What ships can be read, by its bare name."""
    assert load_scenario(find_scenario(Path(name))).requests


def test_a_file_comes_before_what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model_case").write_text("nothing")
    assert find_scenario(Path("model_case")) == Path("model_case")
    assert find_scenario(Path("elsewhere/model_case")) == Path("elsewhere/model_case")


def test_batches() -> None:
    """Sendings follow each other, but for those that start with another."""
    data = scenario(
        [
            request("a", ("d", 10), times=2),
            request("b", ("d", 10)),
            request("c", ("d", 10), times=2, **{"with": "a"}),
            request("d", ("d", 10), **{"with": "c"}),
        ],
        replicas=2,
    )
    found = [[(sending.id, sending.replica) for sending in batch] for batch in batches(parse_scenario(data))]
    assert found == [[("a-0", 0), ("c-0", 1), ("c-1", 0), ("d", 1)], [("a-1", 0)], [("b", 1)]]


def test_segments() -> None:
    """Name and length fix a segment's tokens; they never change, and a shorter use is a prefix."""
    assert segment("doc", 5) == [1348, 28334, 26454, 13583, 29565]
    assert segment("doc", 1000)[:5] == segment("doc", 5)
    assert segment("other", 5) != segment("doc", 5)
    assert output("cold", 3) == segment("output:cold", 3)
    assert all(10 <= token < 32000 for token in segment("doc", 1000))


def put(*path: Any, value: Any) -> Change:
    """Return a change of the scenario: `value` at `path`."""

    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def drop(*path: Any) -> Change:
    """Return a change of the scenario: nothing at `path`."""

    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "misspelt key": (put("engine", "block_sise", value=16), "engine.block_sise: unknown key; did you mean block_size?"),
    "unknown key": (put("engine", "zzz", value=16), "engine.zzz: unknown key; known keys: groups, block_size"),
    "misspelt deep": (
        put("requests", 1, "prompt", 0, "token", value=1),
        "requests[1].prompt[0].token: unknown key; did you mean tokens?",
    ),
    "top level": (put("replica", value=1), "replica: unknown key; did you mean replicas?"),
    "no engine": (drop("engine"), "engine: missing"),
    "no groups": (drop("engine", "groups"), "engine.groups: missing"),
    "no tokens": (drop("requests", 0, "prompt", 0, "tokens"), "requests[0].prompt[0].tokens: missing"),
    "zero block": (put("engine", "block_size", value=0), "engine.block_size: Expected `int` >= 1"),
    "text": (put("engine", "block_size", value="big"), "engine.block_size: Expected `int`, got `str`"),
    "fraction": (put("requests", 0, "prompt", 0, "tokens", value=1.5), "requests[0].prompt[0].tokens: Expected `int`"),
    "negative tokens": (
        put("requests", 0, "prompt", 0, "tokens", value=-3),
        "requests[0].prompt[0].tokens: Expected `int` >= 1",
    ),
    "empty pool": (put("engine", "num_gpu_blocks", value=0), "engine.num_gpu_blocks: Expected `int` >= 1"),
    "kind": (
        put("engine", "groups", 0, "kind", value="linear"),
        "engine.groups[0].kind: unknown value 'linear'; there are mamba, full_attention, sliding_window",
    ),
    "misspelt kind": (
        put("engine", "groups", 0, "kind", value="mambaa"),
        "engine.groups[0].kind: unknown value 'mambaa'; there are mamba, full_attention, sliding_window. "
        "Did you mean mamba?",
    ),
    "no requests": (put("requests", value=[]), "requests: Expected `array` of length >= 1"),
    "no prompt": (put("requests", 0, "prompt", value=[]), "requests[0].prompt: Expected `array` of length >= 1"),
    "same id": (put("requests", 1, "id", value="cold"), "requests[1].id: 'cold' stands twice"),
    "same sending": (put("requests", 0, "id", value="repeat-1"), "requests[1].id: its sending 'repeat-1' has the id"),
    "replica": (put("requests", 0, "replica", value=1), "requests[0].replica: 1, but there are 1, numbered from 0"),
    "with nobody": (
        put("requests", 1, "with", value="bold"),
        "requests[1].with: 'bold' is no request; name one of cold",
    ),
    "with a later": (put("requests", 0, "with", value="repeat"), "requests[0].with: 'repeat' does not stand above"),
    "with itself": (put("requests", 1, "with", value="repeat"), "requests[1].with: 'repeat' does not stand above"),
    "no window": (
        put("engine", "groups", 0, value={"kind": "sliding_window"}),
        "engine.groups[0]: a sliding_window group needs window",
    ),
    "window": (put("engine", "groups", 0, "window", value=8), "engine.groups[0].window: only a sliding_window group"),
    "draft": (put("engine", "groups", 1, "draft", value=True), "engine.groups[1].draft: there is no drafter"),
    "replay": (
        put("engine", "groups", 0, "replay", value=True),
        "engine.groups[0].replay: only a sliding_window group",
    ),
    "retention": (
        put("engine", "prefix_cache_retention_interval", value=1000),
        "engine.prefix_cache_retention_interval: 1000 is no multiple of the scheduler block, 1600",
    ),
    "retention word": (
        put("engine", "prefix_cache_retention_interval", value="sparse"),
        "engine.prefix_cache_retention_interval: unknown value 'sparse'; there are dense, default, a number",
    ),
    "match unit": (
        put("engine", "prefix_match_unit", value=48),
        "engine.prefix_match_unit: 48 does not divide every group's block size (1600, 1600, 1600, 1600)",
    ),
    "batch": (
        put("engine", "max_num_batched_tokens", value=1000),
        "engine.max_num_batched_tokens: 1000 is less than a mamba block of 1600 tokens",
    ),
    "accepted": (
        put("engine", "speculative", value=MTP | {"accepted_tokens": 3}),
        "engine.speculative.accepted_tokens: more than",
    ),
    "method": (
        put("engine", "speculative", value={"method": "magic"}),
        "engine.speculative.method: unknown value 'magic'; there are mtp, ngram",
    ),
    "length": (
        put("requests", 0, "prompt", 0, "tokens", value=200000),
        "requests[0]: 200003 tokens with its output, more than engine.max_model_len, 131072",
    ),
    "vocabulary": (put("engine", "vocabulary", value=1 << 31), "engine.vocabulary: Expected `int` <= 2147483647"),
    "two connectors": (
        put("engine", value={"groups": FULL, "connector": "decode_bench", "cpu_offload": {"blocks": 9}}),
        "engine.cpu_offload: is a connector of its own",
    ),
    "connector": (
        put("engine", "connector", value="nixl"),
        "engine.connector: unknown value 'nixl'; there are decode_bench, a mapping",
    ),
    "connector's class": (
        put("engine", "connector", value={"module_path": "mine"}),
        "engine.connector.class: missing",
    ),
    "offload without attention": (
        put("engine", value={"groups": [{"kind": "mamba"}], "block_size": 1600, "cpu_offload": {"blocks": 9}}),
        "engine.cpu_offload: vLLM's offloading needs a full_attention group",
    ),
    "delay": (
        put("requests", 0, "delay", value=1),
        "requests[0].delay: counts steps from the start of another request",
    ),
    "reset with another": (
        put("requests", 1, value=request("repeat", ("doc", 10), reset=True, **{"with": "cold"})),
        "requests[1].reset: a request that starts with another finds it running",
    ),
    "path of nothing": (put("requests", 0, "lora_path", value="/l"), "requests[0].lora_path: there is no adapter"),
    "stop": (put("requests", 0, "stop_after", value=4), "requests[0].stop_after: more than output_tokens, 3"),
    "item outside": (
        put("requests", 0, "items", value=[{"content": "cat", "offset": 4990, "tokens": 20}]),
        "requests[0].items[0]: ends at 5010, beyond the prompt's 5000 tokens",
    ),
    "items overlap": (
        put("requests", 0, "items", value=[{"content": "cat", "offset": n, "tokens": 20} for n in (10, 20)]),
        "requests[0].items[1].offset: 20 lies before the end of the item above it, 30",
    ),
    "item too long": (
        put(
            "requests",
            0,
            value=request("cold", ("doc", 9000), items=[{"content": "cat", "offset": 0, "tokens": 8500}]),
        ),
        "requests[0].items[0].tokens: an item is encoded in one step, which takes at most 8192 tokens",
    ),
    "priority": (put("requests", 0, "priority", value=1), "requests[0].priority: unknown key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """The message names the source, the place, and what is wrong there."""
    change, message = REFUSED[name]
    data = scenario(resent(5000), [dict(group) for group in HYBRID], block_size=1600)
    change(data)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data, "mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {message}")


def test_retention_without_sparse_groups() -> None:
    """An interval that has no effect is not taken in silence."""
    with pytest.raises(ScenarioError, match="no effect without a mamba or sliding_window group"):
        parse_scenario(scenario(resent(100), FULL, prefix_cache_retention_interval=0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a scenario is a mapping"),
        ("- 1", "a scenario is a mapping"),
        ("engine: [", "not YAML at line 1, column 10"),
        ("engine: {}\nengine: {}\n", "not YAML at line 2, column 1: the key 'engine' stands twice"),
        ("a: \x00", "not YAML"),
        ("a: &a [*a]\n", "a: unknown key"),
        ("!!python/object:os.system {}\n", "not YAML at line 1"),
        ("{[1]: 2}", "not YAML at line 1"),
        ("{}", "engine: missing"),
    ],
)
def test_files_that_are_no_scenario(tmp_path: Path, text: str, message: str) -> None:
    """A sentence with the path and the place."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """No file, a folder, bytes that are no text."""
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match="cannot be read as text"):
        load_scenario(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ScenarioError, match="cannot be read as text"):
        load_scenario(tmp_path / "bytes")


def test_shipped_variant() -> None:
    """Settings of a shipped scenario can be changed from outside."""
    assert parse_scenario(shipped("model_case", block_size=800, prefix_cache_retention_interval=800))


def test_a_scenario_as_an_engine_file(tmp_path: Path) -> None:
    """Its engine is taken, its replicas where it names them, and none of its requests; what is wrong in it is said."""
    path, work = tmp_path / "mine.yaml", tmp_path / "work.yaml"
    work.write_text(yaml.safe_dump(scenario(resent(3000), FULL, num_gpu_blocks=777)))
    named = {**shipped("model_case"), "replicas": 2}
    for data, replicas in ((shipped("model_case"), None), (named, 2)):
        path.write_text(yaml.safe_dump(data))
        file = load_engine(path)
        assert (file.engine, file.replicas) == (parse_scenario(data).engine, replicas)
        assert (file.routing, file.output_tokens, file.requests) == (None, None, None)
        found = load_workload(work, path)
        assert (found.engine, found.replicas) == (file.engine, replicas or 1)
        assert [request.id for request in found.requests] == ["cold", "repeat"]
    path.write_text(yaml.safe_dump({**named, "requests": [request("x", ("doc", 0))]}))
    with pytest.raises(ScenarioError, match=r"mine.yaml: requests\[0\].prompt\[0\].tokens: Expected"):
        load_engine(path)
    path.write_text(yaml.safe_dump({**named, "requests": 3}))
    assert load_engine(path).requests == 3
