"""An analysis by hand: the model case, and one whose every number is a strategy's."""

from hypothesis import strategies as st

from analyzers.model import (
    CLASSES,
    Analysis,
    Coverage,
    Finding,
    GroupState,
    LookupResult,
    Sequence_,
)


def mamba(group: int) -> GroupState:
    """Return the state of a Mamba group that computed 9,600 and was not allowed to keep it."""
    return GroupState(group, "mamba", 1600, 9600, 0, None, None, "masked", 9600, [11200])


ATTENTION = GroupState(3, "full_attention", 1600, 11909, 9600, 9600, 11200, "stored")
COLD = LookupResult("cold-0", "r0", 0, 1, 1, 11910, 0, 0, 0, {"cold": 11910}, [], [])
REPEAT = LookupResult(
    "repeat-0", "r0", 0, 2, 1, 11910, 0, 0, 9600,
    {"tail": 710, "speculative_drop": 1600, "shifted_boundary": 9600}, [2, 0, 1],
    [ATTENTION, mamba(0), mamba(2), mamba(1)],
    "speculation", "the state at 9,600 was computed, but the retention mask refused it", "cold-0",
)  # fmt: skip
ANALYSIS = Analysis(
    coverage=Coverage(44, 1, 2, 0, 1, 3, ["spans.jsonl line 3: not JSON (cut off)"]),
    replicas={"r0": {"vllm.version": "0.28.0", "ratio": float("inf"), "groups": ("mamba", "full_attention")}},
    lookups=[COLD, REPEAT],
    sequences=[Sequence_(["cold-0", "repeat-0"], "identical", [0, 0], "never hits", REPEAT.cause)],
    findings=[
        Finding(
            "shifted-boundary", "the retention mask refused the state", {"replica": "r0", "groups": {2, 0, 1}},
            "set --prefix-cache-retention-interval 1600", 9600, 1, REPEAT.cause,
        )
    ],
    lost={"cold": 11910, "tail": 710, "speculative_drop": 1600, "shifted_boundary": 9600},
)  # fmt: skip
EMPTY = Analysis(Coverage(1, 1, 0, 0, 0), {}, [], [], [])

TOKENS = st.integers(0, 10**12)
TEXT = st.text(max_size=90)
NAME = st.text(min_size=1, max_size=60)
LOST = st.dictionaries(st.sampled_from(CLASSES), TOKENS.filter(bool), max_size=4)
GROUP = st.builds(
    GroupState,
    group=st.integers(0, 99),
    kind=st.sampled_from(["mamba", "full_attention", "chunked_local_attention"]) | NAME,
    block_size=TOKENS,
    asked_tokens=st.none() | TOKENS,
    hit_tokens=TOKENS,
    stored_below=st.none() | TOKENS,
    stored_above=st.none() | TOKENS,
    state=st.sampled_from(["stored", "masked", "not_materialized", "evicted", "unknown"]),
    chunk_end=st.none() | TOKENS,
    wanted=st.lists(TOKENS, max_size=8),
)
LOOKUP = st.builds(
    LookupResult,
    request_id=NAME,
    replica=NAME,
    life=st.just(0),
    time=st.just(0),
    attempts=TOKENS,
    prompt_tokens=TOKENS,
    hit_tokens=TOKENS,
    predicted_hit_tokens=TOKENS,
    needed_boundary=TOKENS,
    lost=LOST,
    limiting_groups=st.lists(st.integers(0, 99), max_size=4),
    groups=st.lists(GROUP, max_size=3),
    reason=TEXT,
    cause=TEXT,
    producer=st.none() | NAME,
)


@st.composite
def analyses(draw: st.DrawFn) -> Analysis:
    """Draw an analysis that holds together in form, not in its sums."""
    lookups = draw(st.lists(LOOKUP, max_size=3))
    index = st.integers(0, len(lookups) - 1) if lookups else st.none()
    finding = st.builds(
        Finding, TEXT, TEXT, st.dictionaries(NAME, TEXT | TOKENS | st.floats(), max_size=4), TEXT, TOKENS,
        st.none() | index,
    )  # fmt: skip
    sequence = st.builds(
        Sequence_, st.lists(NAME, max_size=7), st.sampled_from(["identical", "extension", "divergence"]),
        st.lists(TOKENS, max_size=12), TEXT, TEXT,
    )  # fmt: skip
    return Analysis(
        coverage=draw(st.builds(Coverage, *[st.integers(0, 10**9)] * 6)),
        replicas=draw(st.dictionaries(NAME, st.dictionaries(NAME, TEXT | st.floats()), max_size=3)),
        lookups=lookups,
        sequences=draw(st.lists(sequence, max_size=2)),
        findings=draw(st.lists(finding, max_size=2)),
        lost=draw(LOST),
    )
