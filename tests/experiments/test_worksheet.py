"""The worksheet: arithmetic in the open, vLLM's own scheduler, and public measurements where they are at hand."""

import json
import os
import re
from math import lcm
from pathlib import Path
from typing import Any

import pytest
from analysis.strategies import LAYOUTS, engines
from conftest import VECTORS, Labs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.cases import HYBRID, MTP, shipped
from vllm_versions import ENGINES as SERVED
from vllm_versions import VERSIONS

from analyzers.experiments.configured import SHARED_PREFIX, checked, configured, version_tuple
from analyzers.experiments.worksheet import worksheet
from analyzers.readers import open_capture
from analyzers.settings import Settings, read_settings
from experiments.commands import command
from otel_cache.errors import LabError

SIZES = (16, 64, 160, 1600)
EXAMPLES = 25
FINE = 40
REFUSED = ("at least two attention groups", "must be divisible by hash_block_size")
"""What vLLM says of layouts that it does not run: up to 0.27 those whose Mamba blocks are not as wide as the others."""


def of(tokens: int, version: str = "0.32", **engine: Any) -> Settings:
    """Return the settings of an engine; one group of full attention unless it says."""
    return configured(checked({"groups": [{"kind": "full_attention"}], **engine}, "engine", tokens), version)


def expected(tokens: int, block: int, drop: bool) -> int:
    """Return the resend's boundary by hand: the last token is computed, and one block dropped."""
    return max(0, (tokens - 1) // block * block - (block if drop else 0))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20_000), st.integers(4, 4096), st.booleans())
def test_one_group(tokens: int, block: int, drop: bool) -> None:
    """Whole blocks below the last token, one less with speculation; a longer prompt gets the last block as well."""
    sheet = worksheet(of(tokens, block_size=block, speculative=MTP if drop else None), tokens)
    assert sheet.final_aligned_boundary == tokens // block * block
    assert sheet.resend_boundary == expected(tokens, block, drop)
    assert sheet.extension_boundary == max(0, tokens // block * block - (block if drop else 0))
    assert sheet.speculative_adjustment == expected(tokens, block, False) - expected(tokens, block, drop)
    assert sheet.minimum_cacheable_prefix == (2 * block if drop else block)
    assert sheet.minimum_resend_tokens == sheet.minimum_cacheable_prefix + 1
    assert list(sheet.hits) == [sheet.resend_boundary] * 3
    assert sheet.verdict == ("hits" if sheet.resend_boundary else "too short")


@pytest.mark.vectors
def test_public_vectors() -> None:
    """What users of vLLM measured, from the file that the variable names: by the command, as a user types it."""
    vectors = json.loads(Path(os.environ[VECTORS]).read_text())["vectors"]
    assert vectors
    for vector in vectors:
        flags = ["--prompt-tokens", vector["n"], "--block-size", vector["block"], "--format", "json"]
        done = command("worksheet", *flags, *(["--speculative"] if vector["spec_drop_blocks"] else []))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["resend_boundary"] == vector["expect"], vector


def predicted(version: str, engine: dict[str, Any], tokens: int) -> tuple[list[int], int]:
    """Return what the worksheet says of three repeats and of a longer prompt."""
    sheet = worksheet(configured(checked(engine, "engine", tokens), version), tokens)
    assert sheet.hits[-1] <= sheet.resend_boundary
    assert sheet.extension_hit <= sheet.extension_boundary
    return list(sheet.hits), sheet.extension_hit


def sends(engine: dict[str, Any], tokens: int, beyond: int) -> dict[str, Any]:
    """Return a scenario: a prompt, its repeats, and of another prompt a longer one."""
    asked = {"output_tokens": 1}
    return {
        "engine": engine,
        "requests": [
            {"id": "cold", "prompt": [{"segment": "a", "tokens": tokens}], **asked},
            {"id": "repeat", "prompt": [{"segment": "a", "tokens": tokens}], "times": 3, **asked},
            {"id": "short", "prompt": [{"segment": "b", "tokens": tokens}], **asked},
            {"id": "long", "prompt": [{"segment": "b", "tokens": tokens}, {"segment": "c", "tokens": beyond}], **asked},
        ],
    }


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_real_scheduler(bare_lab: Labs, version: str) -> None:
    """Any layout, any length: the repeats and the longer prompt hit what the worksheet says."""
    ran = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(engines(LAYOUTS, True, SIZES, (8000,)), st.integers(0, 7), st.integers(-5, 1600))
    def holds(drawn: tuple[dict[str, Any], int], blocks: int, more: int) -> None:
        nonlocal ran
        engine, block = drawn
        engine |= {"num_gpu_blocks": 8000, "async_scheduling": False, "max_num_seqs": 8}
        tokens = max(1, blocks * block + min(more, block))
        ran += agrees(bare_lab, version, engine, tokens, block)

    holds()
    assert ran > EXAMPLES // 2


def agrees(bare_lab: Labs, version: str, engine: dict[str, Any], tokens: int, block: int) -> bool:
    """Hold the worksheet to what vLLM hits; return whether it ran, and did not refuse the engine."""
    try:
        said = bare_lab[version].run(sends(engine, tokens, 2 * block + 3))
    except LabError as error:
        assert any(reason in str(error) for reason in REFUSED), error
        return False
    assert (said.hits[1:4], said.hits[5]) == predicted(version, engine, tokens), (engine, tokens)
    return True


FINE_VERSIONS = tuple(dict.fromkeys((*VERSIONS, *SERVED)))
"""Those that the tests have: versions differ most in what they keep inside blocks."""


@st.composite
def fine_engines(draw: st.DrawFn, checkpoint: bool) -> tuple[dict[str, Any], int]:
    """Return the settings of an engine whose hits end inside blocks, and a prompt's length (tokens).

    Mamba blocks are wider than the match unit, those of full attention may be, and those of a window are as wide. With
    `checkpoint` a state may be kept inside a block where a shared prefix ends.
    """
    unit, wide = draw(st.sampled_from([4, 16, 40])), draw(st.sampled_from([2, 3, 4, 8]))
    dense = draw(st.sampled_from([1, wide, 2 * wide, *(2, 4) * (wide in (4, 8))]))
    groups: list[dict[str, Any]] = [
        {"kind": "mamba", "block_size": unit * wide, "layers": draw(st.sampled_from([1, 3]))},
        {"kind": "full_attention", "block_size": unit * dense},
    ]
    if draw(st.integers(0, 2)) == 0:
        window = draw(st.sampled_from([unit, 2 * unit, 3 * unit + 5]))
        groups.append({"kind": "sliding_window", "window": window, "block_size": unit})
    speculative = draw(st.sampled_from([None, MTP]))
    if speculative and draw(st.booleans()):
        groups[draw(st.integers(0, len(groups) - 1))]["draft"] = True
    flag = {"enable_mamba_shared_prefix_checkpoint": True} if checkpoint and draw(st.booleans()) else {}
    block = unit * lcm(wide, dense)
    more = draw(st.sampled_from([-unit, -5, -1, 0, 1, unit, unit + 1]) | st.integers(-block, block))
    return {
        "prefix_match_unit": unit,
        "split_block_size": draw(st.sampled_from([None, None, unit, block])),
        "prefix_cache_retention_interval": draw(st.sampled_from([0, "default", "dense", block, 3 * block])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 3, 5])) * block
        + draw(st.sampled_from([0, unit, block // 3])),
        "num_gpu_blocks": 8000,
        "speculative": speculative,
        "groups": draw(st.permutations(groups)),
        "max_num_seqs": 8,
        "async_scheduling": False,
        **flag,
    }, max(1, draw(st.integers(0, 7)) * block + more)


@pytest.mark.vllm
@pytest.mark.parametrize("version", FINE_VERSIONS)
def test_hits_inside_blocks(bare_lab: Labs, version: str) -> None:
    """A match unit finer than blocks: the same, whatever blocks the groups have and whichever the drafter is in."""
    ran = 0

    @settings(max_examples=FINE, deadline=None, derandomize=True, database=None)
    @given(fine_engines(version_tuple(version) >= SHARED_PREFIX))
    def holds(drawn: tuple[dict[str, Any], int]) -> None:
        nonlocal ran
        engine, tokens = drawn
        block = lcm(*(group["block_size"] for group in engine["groups"]))
        ran += agrees(bare_lab, version, engine, tokens, block)

    holds()
    assert ran > FINE // 8


ENGINES: list[dict[str, Any]] = [
    {"groups": HYBRID, "block_size": 1600, "speculative": MTP},
    {"groups": HYBRID, "block_size": 64, "prefix_match_unit": 16, "split_block_size": 128},
    {"groups": HYBRID, "block_size": 64, "prefix_match_unit": 16, "speculative": MTP},
    {"groups": [{"kind": "full_attention"}], "speculative": {"method": "ngram"}},
    {
        "groups": [
            {"kind": "mamba", "block_size": 256},
            {"kind": "sliding_window", "window": 100, "block_size": 128},
            {"kind": "full_attention", "block_size": 64},
        ],
        "speculative": MTP,
        "prefix_cache_retention_interval": 512,
    },
    {
        "groups": [{"kind": "full_attention"}, {"kind": "sliding_window", "window": 100, "draft": True}],
        "speculative": MTP,
        "prefix_cache_retention_interval": 0,
    },
]


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_settings_are_what_vllm_makes_of_them(lab: Labs, tmp_path: Path, version: str) -> None:
    """What is computed of an engine is what its replica says of itself."""
    for index, engine in enumerate(ENGINES):
        if version_tuple(version) >= SHARED_PREFIX:
            engine = {**engine, "enable_mamba_shared_prefix_checkpoint": True}
        out = tmp_path / f"{index}.jsonl"
        lab[version].run({"engine": engine, "requests": sends(engine, 300, 3)["requests"][:1]}, out)
        (life,) = open_capture([out]).lives
        said = read_settings(life.attributes, "the replica")
        ours = configured(checked(engine, "engine", 300), said.version)
        for name in ("groups", "order", "alignment", "hash_block", "scheduler_block", "split_block", "lookahead",
                     "partial_hits", "block_beyond", "retention", "max_batched_tokens", "speculative_tokens",
                     "shared_prefix_checkpoint"):  # fmt: skip
            assert getattr(ours, name) == getattr(said, name), (engine, name)


@pytest.mark.parametrize(
    ("version", "retention", "hits", "verdict"),
    [
        ("0.28.0", 0, [0, 9600, 9600], "miss-miss-hit"),
        ("0.28.0", 1600, [9600, 9600, 9600], "hits"),
        ("0.32.0", 0, [9600, 9600, 9600], "hits"),
        ("0.33.0", 0, [11200, 11200, 11200], "hits"),
    ],
)
def test_the_model_case(version: str, retention: int, hits: list[int], verdict: str) -> None:
    """The hits that were measured on vLLM's scheduler: docs/scenarios.md has them."""
    engine = shipped("model_case", prefix_cache_retention_interval=retention)["engine"]
    sheet = worksheet(configured(checked(engine, "engine", 11910), version), 11910)
    assert (list(sheet.hits), sheet.verdict) == (hits, verdict)
    assert sheet.final_aligned_boundary == 11200
    assert sheet.groups[0].at_resend == (verdict == "hits")


def test_of_a_capture(tmp_path: Path) -> None:
    """The settings of a replica in the capture that ships, and what another interval would do."""
    example = Path(__file__).parents[2] / "analyzers" / "examples" / "model_case.jsonl"
    done = command("worksheet", "--from", example, "--prompt-tokens", 11910, "--format", "json")
    sheet = json.loads(done.stdout)
    assert (sheet["repeat_hits"], sheet["settings"]["vllm_version"]) == ([0, 9600, 9600], "0.28.0")
    done = command("worksheet", "--from", example, "--prompt-tokens", 11910, "--retention-interval", 1600)
    assert "9,600, 9,600, 9,600" in done.stdout
    assert "Verdict: hits" in done.stdout


def test_a_version_that_is_not_known() -> None:
    """The rules of the newest are taken, and a note says so; a sub-version of a known one needs none."""
    flags = ["worksheet", "--prompt-tokens", 11910, "--block-size", 1600, "--speculative", "--format", "json"]
    newest, *others = (command(*flags, "--vllm-version", version) for version in ("0.33", "0.99", "1.0.1", "0.33.7"))
    assert newest.stderr == ""
    assert [done.stderr for done in others] == [
        f"note: the rules of vLLM {version} are not known; those of 0.33, the newest that is, are taken\n" * noted
        for version, noted in (("0.99", 1), ("1.0.1", 1), ("0.33.7", 0))
    ]
    hits = {json.dumps(json.loads(done.stdout)["repeat_hits"]) for done in (newest, *others)}
    assert len(hits) == 1
    assert command(*flags, "--vllm-version", "0.99", "--quiet").stderr == ""


def test_a_column_for_each_boundary() -> None:
    """Where a resend and a longer prompt have the same boundary there is one; else each has its own."""
    flags = ["worksheet", "--block-size", 1600, "--group", "mamba", "--group", "full_attention", "--prompt-tokens"]
    for tokens, columns in ((11910, ["at 11,200"]), (11200, ["at 9,600", "at 11,200"]), (1600, ["at 0", "at 1,600"])):
        header = next(line for line in command(*flags, tokens).stdout.splitlines() if "after the first" in line)
        assert re.findall(r"at [\d,]+", header) == columns


@pytest.mark.parametrize(
    ("speculative", "boundary"),
    [([], 4800), (["--speculative"], 3200), (["--speculative", 2], 3200), (["--speculative", "eagle3"], 3200),
     (["--speculative", 0], 4800), (["--speculative", "ngram"], 4800)],
)  # fmt: skip
def test_ways_to_speculate(speculative: list[object], boundary: int) -> None:
    """A drafter takes a block of four off; n-grams need none."""
    done = command("worksheet", "--prompt-tokens", 6400, "--block-size", 1600, *speculative, "--format", "json")
    assert json.loads(done.stdout)["resend_boundary"] == boundary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt-tokens", "5", "--speculative", "luck"], "--speculative luck: no method"),
        (["--prompt-tokens", "5", "--vllm-version", "new"], "'new' is no version of vLLM"),
        (["--prompt-tokens", "5", "--vllm-version", "0.20"], "its rules are not known"),
        (["--prompt-tokens", "5", "--group", "mamba,layers"], "'layers' is not KEY=TOKENS"),
        (["--prompt-tokens", "5", "--group", "mambo"], "Error: --group mambo: kind: unknown value 'mambo'; there are "),
        (["--prompt-tokens", "5", "--group", "mamba", "--group", "full_attention,layer=2"],
         "Error: --group full_attention,layer=2: layer: unknown key; did you mean layers?"),
        (["--prompt-tokens", "5", "--group", "full_attention,draft"], "there is no drafter without --speculative"),
        (["--prompt-tokens", "5", "--match-unit", "7"], "Error: --match-unit: 7 does not divide"),
        (["--prompt-tokens", "5", "--retention-interval", "x"], "Error: --retention-interval: unknown value 'x'"),
        (["--prompt-tokens", "5", "--block-size", "16384", "--group", "mamba"], "Error: --max-num-batched-tokens: "),
        (["--prompt-tokens", "5", "--replica", "a"], "give the capture with --from"),
        (["--prompt-tokens", "5", "--from", "none.jsonl"], "none.jsonl"),
        (["--prompt-tokens", "5", "--from", "x", "--block-size", "3"], "--block-size: the capture says it already"),
        (["--prompt-tokens", "5", "--engine", "none.yaml"], "none.yaml: no such file"),
        (["--prompt-tokens", "5", "--group", "mamba", "--group", "full_attention", "--retention-interval", "7"],
         "7 is no multiple of the scheduler block"),
    ],
)  # fmt: skip
def test_what_cannot_be(arguments: list[str], message: str) -> None:
    """One sentence that says what and where; exit code 2."""
    done = command("worksheet", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_wrong_in_a_file_is_told_by_its_place_there(tmp_path: Path) -> None:
    """And what a flag put in its place, by the flag."""
    engine = tmp_path / "engine.yaml"
    engine.write_text("engine: {groups: [{kind: mambaa}]}\n")
    given = ["worksheet", "--prompt-tokens", "5", "--engine", engine]
    assert f"{engine}: engine.groups[0].kind: unknown value 'mambaa'" in command(*given).stderr
    assert "Error: --group mambo: kind: unknown value" in command(*given, "--group", "mambo").stderr
