"""What limited a hit, for any lookup."""

from hypothesis import given
from hypothesis import strategies as st

from otel_cache.records import GroupPass
from otel_cache.semconv import names
from otel_cache.sidecar.lookups import group_attributes, lookup_attributes
from otel_cache.sidecar.resource import read_settings
from otel_cache.sidecar.verdict import judge

from .support import ATTRIBUTES, BLOCK, lookup

REASONS = {
    names.LIMITED_BY_NONE, names.LIMITED_BY_NO_MATCH, names.LIMITED_BY_GROUP_STATE,
    names.LIMITED_BY_SPECULATIVE_DROP, names.LIMITED_BY_ALIGNMENT, names.LIMITED_BY_SKIPPED,
}  # fmt: skip
TOKENS = st.integers(0, 20_000)
PASSES = st.lists(
    st.builds(GroupPass, st.lists(st.integers(0, 5), max_size=4), TOKENS, TOKENS, TOKENS, st.integers(0, 2000)),
    max_size=6,
)
LOOKUPS = st.builds(
    lookup, st.integers(0, 9), tokens=TOKENS, limit=TOKENS, hit=TOKENS, uncached=TOKENS, skipped=st.booleans(),
    passes=PASSES, above=st.lists(st.none() | TOKENS, max_size=6),
)  # fmt: skip


@given(LOOKUPS, st.integers(0, 3000), st.booleans())
def test_every_lookup_has_a_reason_and_a_sentence(record, alignment, introduced):
    settings_ = read_settings({**ATTRIBUTES, names.HIT_ALIGNMENT: alignment} if introduced else {})

    verdict = judge(record, alignment)
    assert verdict.reason in REASONS
    attributes = lookup_attributes(record, verdict, settings_, 1, None)
    assert attributes[names.LOOKUP_LIMITED_BY] in REASONS
    assert attributes[names.LOOKUP_SUMMARY]
    list(group_attributes(record, settings_))


def test_the_reasons_of_the_model_case():
    nothing = lookup(1, uncached=0, passes=[GroupPass([3], 11909, 0, 0, BLOCK)], above=[None] * 4)
    dropped = [GroupPass([3], 11909, 9600, 1600, BLOCK), GroupPass([0, 1, 2], 9600, 9600, 0, BLOCK)]

    assert judge(nothing, BLOCK).reason == names.LIMITED_BY_NO_MATCH
    assert judge(lookup(1), BLOCK).reason == names.LIMITED_BY_GROUP_STATE
    assert judge(lookup(1), BLOCK).limiting == [0, 1, 2]
    hit = lookup(1, hit=9600, uncached=0, passes=dropped)
    assert judge(hit, BLOCK).reason == names.LIMITED_BY_SPECULATIVE_DROP
    assert judge(lookup(1, hit=11200), BLOCK).reason == names.LIMITED_BY_NONE
    assert judge(lookup(1, skipped=True), BLOCK).reason == names.LIMITED_BY_SKIPPED


def test_a_group_that_gave_all_it_was_asked_for_does_not_limit():
    passes = [GroupPass([3], 9600, 9600, 0, BLOCK), GroupPass([0], 9600, 0, 0, BLOCK), GroupPass([1], 0, 0, 0, BLOCK)]

    assert judge(lookup(1, passes=passes), BLOCK).limiting == [0]


def test_long_prompts_are_split():
    record = lookup(1, fingerprints=b"f" * 8 * 400)
    values = lookup_attributes(record, judge(record, BLOCK), read_settings(ATTRIBUTES), 1, None)

    assert [len(text) for text in values[names.FINGERPRINT_VALUES]] == [2048, 2048, 172]
