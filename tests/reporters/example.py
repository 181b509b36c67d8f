"""An analysis by hand: the model case, and one whose every number is a strategy's."""

from hypothesis import strategies as st

from analyzers.model import (
    CLASSES,
    Analysis,
    Capacity,
    CounterCheck,
    Coverage,
    Eviction,
    Fact,
    Finding,
    Fleet,
    GroupCapacity,
    GroupState,
    LookupResult,
    Routed,
    Sequence_,
)


def mamba(group: int) -> GroupState:
    """Return the state of a Mamba group that computed 9,600 and was not allowed to keep it."""
    return GroupState(group, "mamba", 1600, 9600, 0, None, None, "masked", 9600, [11200])


ATTENTION = GroupState(3, "full_attention", 1600, 11909, 9600, 9600, 11200, "stored")
COLD = LookupResult(
    "cold-0", "r0", 0, 1, 1, 11910, 0, 0, 0, {"cold": 11910}, [], [], funnel=(11910, 0, 0, 0, 0, 0), family="cold-0"
)
REPEAT = LookupResult(
    "repeat-0", "r0", 0, 2, 1, 11910, 0, 0, 9600,
    {"tail": 710, "speculative_drop": 1600, "shifted_boundary": 9600}, [2, 0, 1],
    [ATTENTION, mamba(0), mamba(2), mamba(1)],
    "speculation", "the state at 9,600 was computed, but the retention mask refused it", "cold-0", 9600,
    [Fact("checkpoint_evicted", 9600, "group 2 lost it to an eviction at 9,600", {"groups": {2}, "also": True})],
    (11910, 11910, 11200, 11200, 0, 0), 9600, ["r1"], 0, "cold-0",
    [("tail", 11910, 11200), ("speculative_drop", 11200, 9600), ("shifted_boundary", 9600, 0)],
    "http://r0:8000", "KvawareRouter", 11210,
)  # fmt: skip
ANALYSIS = Analysis(
    coverage=Coverage(
        44, 1, 2, 0, 1, 3, ["spans.jsonl line 3: not JSON (cut off)"], 5, 1, ["traceidratio 0.1"], 1000, 2000, ["r0"],
        {"r0": -1.5},
    ),
    replicas={"r0": {"vllm.version": "0.28.0", "ratio": float("inf"), "groups": ("mamba", "full_attention")}},
    lookups=[COLD, REPEAT],
    sequences=[
        Sequence_(["cold-0", "repeat-0"], "identical", [0, 0], "never hits", REPEAT.cause, ["r0", "r0"]),
        Sequence_(["cold-0", "leaves"], "divergence", [0, 8000], "miss-hit", "", ["r0", "r1"], 11195, 9600),
    ],
    findings=[
        Finding(
            "shifted-boundary", "the retention mask refused the state", {"replica": "r0", "groups": {2, 0, 1}},
            "set --prefix-cache-retention-interval 1600", 9600, 1, REPEAT.cause, "warning", (0.5, 1.25), ["r0", "r1"],
        )
    ],
    lost={"cold": 11910, "tail": 710, "speculative_drop": 1600, "shifted_boundary": 9600},
    fleet=Fleet(9600, 1, [("cold-0", 9600)], 22400, 11200, 9600, 0),
    capacity=[
        Capacity(
            "r0", 400,
            [
                GroupCapacity(0, "mamba", 1600, False, 3, 0.125, 9, 6, 0.5, (120.0, 250.5), 1, 0.2),
                GroupCapacity(1, "full_attention", 16, True, 21, 0.875, 21, 0, 100.0, None, 4, 0.8),
            ],
            [(0.0, (0, 0)), (12.5, (3, 21))], (3.25, 9.0), 2, [("cold-0", 11910), ("other", 5000)],
            [Eviction(0, 0, 1), Eviction(1, 0, 4), Eviction(None, 0, 1)], 24, 0.125,
        )
    ],
    prefill_seconds=(1.0, 3.0),
    avoidable_seconds=(0.5, 1.25),
    routed=[Routed("http://r0:8000", "KvawareRouter", ["r0", "r1"], 2, 0, 9600, 1, 11210, 9600)],
    counters=[CounterCheck("vllm:prefix_cache_queries_total", "queries", ["r0"], 1000, 2000, 23820, 11910, 23820)],
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
    intact_boundary=st.none() | TOKENS,
    facts=st.lists(st.builds(Fact, st.sampled_from(CLASSES), TOKENS, TEXT, st.dictionaries(NAME, TEXT)), max_size=2),
    funnel=st.none() | st.tuples(*[TOKENS] * 6),
    best_hit_tokens=st.none() | TOKENS,
    best_replicas=st.lists(NAME, max_size=2),
    previous_turn_hit_tokens=st.none() | TOKENS,
    family=TEXT,
    ladder=st.lists(st.tuples(st.sampled_from(CLASSES), TOKENS, TOKENS), max_size=3),
)
SECONDS = st.none() | st.tuples(st.floats(0, 1e9), st.floats(0, 1e9))
FLEET = st.builds(
    Fleet, TOKENS, TOKENS, st.lists(st.tuples(TEXT, TOKENS), max_size=3), TOKENS, TOKENS, TOKENS, TOKENS
)  # fmt: skip
POOL = st.builds(
    GroupCapacity, st.integers(0, 99), NAME, TOKENS, st.booleans(), TOKENS, st.floats(0, 1), TOKENS, TOKENS,
    st.floats(0, 1e6), SECONDS, TOKENS, st.floats(0, 1),
)  # fmt: skip
POOLS = st.lists(POOL, min_size=3, max_size=3)
OCCUPANCY = st.lists(st.tuples(st.floats(0, 1e9), st.tuples(TOKENS, TOKENS, TOKENS)), max_size=9)
CAPACITY = st.builds(
    Capacity, NAME, TOKENS, POOLS, OCCUPANCY, SECONDS, st.integers(0, 9),
    st.lists(st.tuples(TEXT, TOKENS), max_size=2),
    st.lists(st.builds(Eviction, st.none() | st.integers(0, 99), st.integers(0, 99), TOKENS), max_size=4),
    TOKENS, st.none() | st.floats(0, 1),
)  # fmt: skip


ROUTED = st.builds(Routed, TEXT, TEXT, st.lists(NAME, max_size=9), *[TOKENS] * 6)


@st.composite
def analyses(draw: st.DrawFn) -> Analysis:
    """Draw an analysis that holds together in form, not in its sums."""
    lookups = draw(st.lists(LOOKUP, max_size=3))
    index = st.integers(0, len(lookups) - 1) if lookups else st.none()
    finding = st.builds(
        Finding, TEXT, TEXT, st.dictionaries(NAME, TEXT | TOKENS | st.floats(), max_size=4), TEXT, TOKENS,
        st.none() | index, TEXT, st.sampled_from(["error", "warning", "info"]), SECONDS, st.lists(NAME, max_size=9),
    )  # fmt: skip
    sequence = st.builds(
        Sequence_, st.lists(NAME, max_size=7), st.sampled_from(["identical", "extension", "divergence"]),
        st.lists(TOKENS, max_size=12), TEXT, TEXT, st.lists(NAME, max_size=3), TOKENS, TOKENS,
    )  # fmt: skip
    return Analysis(
        coverage=draw(st.builds(Coverage, *[st.integers(0, 10**9)] * 6)),
        replicas=draw(st.dictionaries(NAME, st.dictionaries(NAME, TEXT | st.floats()), max_size=3)),
        lookups=lookups,
        sequences=draw(st.lists(sequence, max_size=2)),
        findings=draw(st.lists(finding, max_size=2)),
        lost=draw(LOST),
        fleet=draw(st.none() | FLEET),
        capacity=draw(st.lists(CAPACITY, max_size=2)),
        prefill_seconds=draw(SECONDS),
        avoidable_seconds=draw(SECONDS),
        routed=draw(st.lists(ROUTED, max_size=9)),
    )
