"""What the sends of a shape are taken to say: from hits, from times, and from our spans."""

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.probe import plan
from analyzers.probe.model import (
    BEFORE,
    CACHING_OFF,
    COARSE,
    CONTAMINATED,
    EVICTED,
    GRAVITY,
    HIT,
    INCONCLUSIVE,
    MISS_MISS_HIT,
    NO_REUSE,
    REPORTING_BUG,
    SHAPES,
    SHORT,
    SHORT_THEN_FULL,
    Kind,
    Observation,
    ShapeVerdict,
    Sizes,
)
from analyzers.probe.prompts import COMMON_IDS, Vocabulary
from analyzers.probe.spans import Spans
from analyzers.probe.verdict import Known, judge, overall
from analyzers.readers import open_capture

from .observations import COLD_SECONDS, observation
from .small_server import Small

SIZES = Sizes(640, "spans", 3000, 2560)
KNOWN = Known(cold=[COLD_SECONDS, COLD_SECONDS])
FAST, SLOW = 0.3, 1.0


def told(*hits: int | None, shared: int = 3000) -> list[Observation]:
    """Return sends whose usage figures and counters both say these hits; the first is cold."""
    return [observation(number, usage=hit, metrics=hit, shared=shared) for number, hit in enumerate(hits)]


@pytest.mark.parametrize(
    ("hits", "shared", "kind", "boundary"),
    [
        # 2,560 = 4 * 640 is the last multiple of 640 in 2,999 tokens.
        ((0, 2560, 2560, 2560), 3000, HIT, 2560),
        ((0, 0, 2560, 2560), 3000, MISS_MISS_HIT, 2560),
        ((0, 0, 0, 2560), 3000, MISS_MISS_HIT, 2560),
        ((0, 1280, 2560, 2560), 3000, SHORT_THEN_FULL, 2560),
        ((0, 1920, 1920, 1920), 3000, SHORT, 2560),
        ((0, 0, 0, 0), 3000, NO_REUSE, 2560),
        # A repeat of a child may hit more than the child did: it shares more.
        ((0, 1920, 2560, 2560), 2559, HIT, 1920),
        ((0, 0, 2560, 2560), 2559, MISS_MISS_HIT, 2560),
        ((0, 0, 1280, 1280), 639, COARSE, 0),
        ((640, 2560, 2560, 2560), 3000, CONTAMINATED, 2560),
    ],
)
def test_by_hits(hits: Sequence[int], shared: int, kind: Kind, boundary: int) -> None:
    """Without spans the grid says what a repeat should hit."""
    verdict = judge("identical", told(*hits, shared=shared), SIZES, KNOWN)
    assert (verdict.kind, verdict.boundary, list(verdict.hits)) == (kind, boundary, list(hits))
    assert verdict.expected == min(shared, 2999) // 640 * 640
    assert not verdict.groups
    if kind == MISS_MISS_HIT:
        assert verdict.pattern in ("miss-miss-hit", "miss-miss-miss-hit")
        assert "which group is to blame is not known without spans" in verdict.says


def test_speculation_takes_a_block() -> None:
    """1,920 is one block less than 2,560: as it should be with speculation, short without it."""
    sends = told(0, 1920, 1920, 1920)
    verdict = judge("identical", sends, SIZES, replace(KNOWN, speculation=True))
    assert verdict.kind == HIT
    assert "speculation takes the last block off a hit" in verdict.says
    assert judge("identical", told(0, 1280, 1280), SIZES, replace(KNOWN, speculation=True)).kind == SHORT
    assert judge("identical", told(0, 0, 0), SIZES, replace(KNOWN, speculation=True)).kind == NO_REUSE


def test_without_a_grid() -> None:
    """What a repeat should hit is not known; that a later one hits more still is."""
    nothing = replace(SIZES, grid=None, source="unknown")
    kinds = [judge("identical", told(*hits), nothing, KNOWN).kind for hits in ((0, 5, 5), (0, 0, 5), (0, 0, 0))]
    assert kinds == [HIT, MISS_MISS_HIT, NO_REUSE]


def test_caching_off() -> None:
    """The server says so."""
    assert judge("identical", told(0, 0, 0), SIZES, replace(KNOWN, caching=False)).kind == CACHING_OFF


def test_figures_that_disagree() -> None:
    """Usage figures and counters say different things of one repeat."""
    sends = [observation(0, usage=0, metrics=0), observation(1, usage=0, metrics=2560), observation(2, usage=0)]
    verdict = judge("identical", sends, SIZES, KNOWN)
    assert verdict.kind == REPORTING_BUG
    assert "repeat 1: the figures for cached tokens disagree: usage 0, /metrics 2,560" in verdict.says


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        # A cold prompt takes 1 s: 0.3 s is below half of it.
        ((FAST, FAST, FAST), REPORTING_BUG),
        ((SLOW, FAST, FAST), REPORTING_BUG),
        # One fast repeat of three may be chance.
        ((SLOW, SLOW, FAST), NO_REUSE),
        ((0.6, 0.6, 0.6), NO_REUSE),
    ],
)
def test_the_time_against_counters_that_say_nothing(seconds: Sequence[float], kind: Kind) -> None:
    """All counters say 0."""
    sends = [observation(0, usage=0, metrics=0)]
    sends += [observation(number, usage=0, metrics=0, seconds=each) for number, each in enumerate(seconds, 1)]
    verdict = judge("identical", sends, SIZES, KNOWN)
    assert verdict.kind == kind
    if kind == REPORTING_BUG:
        assert "after 300 ms, a cold prompt after 1000 ms at least, and 0 tokens count as cached" in verdict.says


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        ((FAST, FAST, FAST), HIT),
        ((SLOW, FAST, FAST), MISS_MISS_HIT),
        ((SLOW, SLOW, SLOW), NO_REUSE),
        ((0.6, 0.7, 0.6), INCONCLUSIVE),
    ],
)
def test_the_time_alone(seconds: Sequence[float], kind: Kind) -> None:
    """No usage figures, no counters, no spans."""
    sends = [observation(0), *(observation(number, seconds=each) for number, each in enumerate(seconds, 1))]
    verdict = judge("identical", sends, SIZES, KNOWN)
    assert (verdict.kind, list(verdict.hits)) == (kind, [None] * 4)
    assert "by the time to the first token alone" in verdict.says


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([16, 48, 640]), st.integers(1, 2), st.integers(2, 4), st.integers(0))
def test_a_cache_is_told_by_its_hits(block: int, late: int, repeats: int, seed: int) -> None:
    """The plan on a cache that keeps a prefix at once, or only from its second computation on."""
    small = Small(block=block, late=late)
    draw = random.Random(seed)
    sizes = plan.sizes(block, "flag", 3 * block + 7, None)
    sends = plan.plan(sizes, Vocabulary(COMMON_IDS), repeats, draw)
    seen = []
    for send in sends:
        total, hit = small.serve(small.tokens(send.prompt.body))
        one = observation(0, usage=hit, tokens=total)
        seen.append(replace(one, send=send))
    for shape in SHAPES:
        verdict = judge(shape, [one for one in seen if one.send.shape == shape], sizes, KNOWN)
        assert verdict.kind == (HIT if late == 1 else MISS_MISS_HIT), verdict
        # Two blocks are shared by a prompt that leaves before the third's end.
        assert verdict.expected == (2 if shape == BEFORE else 3) * block
        if late == 1:
            assert verdict.boundary == verdict.expected


@pytest.fixture(scope="module")
def model_case() -> list[Observation]:
    """The capture that ships, as if the probe had sent its four requests: vLLM 0.28's scheduler with speculation."""
    with as_file(files("analyzers") / "examples" / "model_case.jsonl") as path:
        rows = list(open_capture([path]).requests.iter_rows(named=True))
        sends = [
            observation(number, tokens=row["prompt_tokens"], shared=row["prompt_tokens"], trace=row["trace_id"])
            for number, row in enumerate(rows)
        ]
        joined = Spans(Path(path), "model case").join(sends)
    assert joined.analysis is not None
    assert joined.settings["vllm.version"] == "0.28.0"
    return joined.observations


def test_by_spans(model_case: list[Observation]) -> None:
    """The class, the groups and the sentence are the analysis's."""
    verdict = judge(
        "identical", model_case, Sizes(1600, "spans", 11910, 11200), replace(KNOWN, fixes={"shifted_boundary": "f"})
    )
    assert (verdict.kind, verdict.boundary, verdict.expected) == (MISS_MISS_HIT, 9600, 9600)
    assert (verdict.hits, verdict.pattern) == ([0, 0, 9600, 9600], "miss-miss-hit")
    assert (verdict.groups, verdict.group_kinds, verdict.cause) == ([0, 1, 2], ["mamba"], "shifted_boundary")
    assert verdict.says.startswith("miss-miss-hit at boundary 9,600")
    assert "groups 0-2 (mamba)" in verdict.says
    assert verdict.fix == "f"


def test_spans_know_what_speculation_takes(model_case: list[Observation]) -> None:
    """A repeat that hits 9,600 of 11,910 is a hit: the boundary of 11,200 is what speculation gives up."""
    cold, _, second, third = model_case
    verdict = judge("identical", [cold, second, third], Sizes(1600, "spans", 11910, 11200), KNOWN)
    assert (verdict.kind, verdict.boundary, verdict.expected) == (HIT, 9600, 9600)


def test_counters_against_spans(model_case: list[Observation]) -> None:
    """Spans say 9,600, the usage figures 0."""
    sends = [replace(one, usage_hit=0) for one in model_case]
    verdict = judge("identical", sends, Sizes(1600, "spans", 11910, 11200), KNOWN)
    assert verdict.kind == REPORTING_BUG
    assert "repeat 2: the figures for cached tokens disagree: usage 0, spans 9,600" in verdict.says


def test_the_gravest_sums_up() -> None:
    """A probe is summed up by one of its shapes; hits come last, and no verdict is without its place."""
    assert sorted(GRAVITY) == sorted(set(Kind.__args__))
    verdicts = [
        ShapeVerdict(str(n), kind, [], "", None, None, "") for n, kind in enumerate((HIT, EVICTED, HIT, EVICTED))
    ]
    assert overall(verdicts) is verdicts[1]
    assert overall(verdicts[::2]) is verdicts[0]
