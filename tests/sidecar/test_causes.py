"""Links from a lookup to the stores that did not keep what it needed, and to the evictions that took it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.cases import FULL, HYBRID, request, scenario, shipped

from otel_cache.records import Batch, Chunk, GroupPass, Record, Reset
from otel_cache.semconv import names
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.causes import Causes
from otel_cache.sidecar.evidence import GatheredEvicts
from otel_cache.sidecar.ids import Context, new_root
from otel_cache.sidecar.prints import Prints
from otel_cache.sidecar.recent import Recent
from otel_cache.sidecar.resource import read_settings
from otel_cache.sidecar.spans import SpanData

from .support import ATTRIBUTES, BLOCK, Read, evict, hello, lookup, named, read_lines, replica, step, store

NOTHING = [GroupPass([3], 11909, 0, 0, BLOCK), GroupPass([0, 1, 2], 0, 0, 0, BLOCK)]
MISS: dict[str, Any] = {"uncached": 0, "passes": NOTHING, "above": [None] * 4}


def prints(prefix: str) -> bytes:
    """Return the fingerprints of a prompt whose blocks these letters name, of which each covers all before it."""
    return b"".join(prefix[: end + 1].rjust(8, ".").encode() for end in range(len(prefix)))


def at(prefix: str) -> bytes:
    """Return the last of these fingerprints."""
    return prints(prefix)[-8:]


def links(*records: Record) -> dict[str, set[tuple[str, Context]]]:
    """Return reason and target of the links of each request's last lookup."""
    builder = ProcessBuilder(hello())
    spans = builder.add(Batch(0, [replica(), *records])) + builder.close()
    assert builder.failed == 0
    lookups = [span for span in spans if span.name == names.LOOKUP]
    known = {span.context for span in spans}
    assert all(link.context in known for span in lookups for link in span.links)
    return {
        str(span.attributes[names.REQUEST_ID]): {
            (str(link.attributes[names.LINK_REASON]), link.context) for link in span.links
        }
        for span in lookups
    }


def linked(*records: Record) -> SpanData:
    """Return the one span that the lookup of the request `again` links to."""
    builder = ProcessBuilder(hello())
    spans = builder.add(Batch(0, [replica(), *records])) + builder.close()
    ((link,),) = [span.links for span in spans if span.attributes.get(names.REQUEST_ID) == "again" and span.links]
    (target,) = [span for span in spans if span.context == link.context]
    return target


def produced(name: str, blocks: str, sequence: int = 1, **changes: Any) -> list[Record]:
    """Return what a request leaves that computed `blocks` in one step: its last state but one refused by group 0."""
    refused = (len(blocks) - 1) * BLOCK
    fields = {"masked": [(refused, refused, BLOCK)], "missing": [(BLOCK, refused - BLOCK, BLOCK)], **changes}
    return [
        lookup(sequence, name, fingerprints=prints(blocks), **MISS),
        store(sequence + 1, 0, name, stored=[(refused + BLOCK, refused + BLOCK, BLOCK)], **fields),
        step(sequence + 2, sequence, chunks=[Chunk(name, 0, 11910, True)], admitted={name: 0}),
    ]


def needs(sequence: int, name: str, blocks: str, boundary: int, **changes: Any) -> list[Record]:
    """Return a lookup that misses since group 0 has no state at `boundary`, which group 3 holds."""
    passes = [GroupPass([3], 11909, boundary, 0, BLOCK), GroupPass([0, 1, 2], boundary, 0, 0, BLOCK)]
    fields = {"uncached": 0, "passes": passes, "fingerprints": prints(blocks), **changes}
    return [lookup(sequence, name, **fields), step(sequence + 1, sequence, admitted={name: 0})]


def test_the_store_that_refused_the_boundary() -> None:
    found = links(*produced("first", "abcdefg"), *needs(4, "again", "abcdefg", 6 * BLOCK))
    assert found["first"] == set()
    ((reason, _),) = found["again"]
    assert reason == names.LINK_REFUSED


def test_the_store_that_passed_the_boundary_without_a_state() -> None:
    assert len(links(*produced("first", "abcdefg"), *needs(4, "again", "abcxyz", 3 * BLOCK))["again"]) == 1


def test_the_uncached_prefix_says_where_the_boundary_is() -> None:
    refused = {"uncached": 6 * BLOCK, "passes": NOTHING}
    assert len(links(*produced("first", "abcdefg"), *needs(4, "again", "abcdefg", 0, **refused))["again"]) == 1


@pytest.mark.parametrize("blocks", ["abcdeXg", "Xbcdefg"])
def test_a_prompt_that_shares_the_position_but_not_the_prefix_is_not_to_blame(blocks: str) -> None:
    assert links(*produced("first", "abcdefg"), *needs(4, "again", blocks, 6 * BLOCK))["again"] == set()


def test_another_key_is_another_state() -> None:
    first = produced("first", "abcdefg")
    first[0] = lookup(1, "first", fingerprints=prints("abcdefg"), key=b"salted!!", **MISS)
    assert links(*first, *needs(4, "again", "abcdefg", 6 * BLOCK))["again"] == set()
    assert len(links(*first, *needs(4, "again", "abcdefg", 6 * BLOCK, key=b"salted!!"))["again"]) == 1


def test_the_latest_of_two_stores_is_to_blame() -> None:
    refusing = linked(
        *produced("one", "abcdefg"), *produced("two", "abcdefg", 4), *needs(7, "again", "abcdefg", 6 * BLOCK)
    )
    assert (refusing.name, refusing.attributes[names.REQUEST_ID]) == (names.STORE, "two")


def test_a_request_s_own_stores_are_not_the_cause_of_its_lookup() -> None:
    """They come after it, in the same step: what was there when it looked counts."""
    again = [
        lookup(4, "again", fingerprints=prints("abcdefg"), passes=HYBRID_AT_6),
        *produced("again", "abcdefg", 5)[1:],
    ]
    found = links(*produced("first", "abcdefg"), *again)
    assert len(found["again"]) == 1
    assert links(*again[:1], *produced("again", "abcdefg", 5)[1:])["again"] == set()


HYBRID_AT_6 = [GroupPass([3], 11909, 6 * BLOCK, 0, BLOCK), GroupPass([0, 1, 2], 6 * BLOCK, 0, 0, BLOCK)]


def test_a_state_that_was_kept_later_and_evicted_is_not_refused() -> None:
    kept = store(4, 0, "first", stored=[(6 * BLOCK, 6 * BLOCK, BLOCK)], masked=[], missing=[])
    gone = evict(5, 0, positions=[6 * BLOCK], fingerprints=at("abcdef"), keys=[], ages=[1], blocks=[7])
    found = links(*produced("first", "abcdefg"), kept, gone, step(6, 9), *needs(7, "again", "abcdefg", 6 * BLOCK))
    ((reason, _),) = found["again"]
    assert reason == names.LINK_EVICTED


def test_an_eviction_is_found_by_its_owner_in_the_same_step() -> None:
    """One step evicts for two requests, then another looks up what it took: the span of the right owner is linked."""
    lost = {"fingerprints": at("abcdef") + at("Abcdef"), "ages": [1, 1], "blocks": [7, 8]}
    taking = linked(
        lookup(1, "p"), lookup(2, "q"), evict(3, 0, positions=[6 * BLOCK] * 2, keys=[], **lost),
        lookup(4, "again", fingerprints=prints("abcdefg"), passes=HYBRID_AT_6),
        step(5, owners={7: "p", 8: "q"}, admitted={"again": 0}),
    )  # fmt: skip
    assert taking.attributes[names.EVICT_EVICTOR_REQUEST_ID] == "p"


def test_what_is_evicted_after_the_lookup_is_not_its_cause() -> None:
    after = evict(2, 0, positions=[6 * BLOCK], fingerprints=at("abcdef"), keys=[], ages=[1], blocks=[7])
    assert (
        links(lookup(1, fingerprints=prints("abcdefg"), passes=HYBRID_AT_6), after, step(3, admitted={"q": 0}))["q"]
        == set()
    )


@pytest.mark.parametrize(("above", "owner"), [(None, "p"), (BLOCK, "q")])
def test_where_nobody_holds_more_the_first_state_that_is_gone_is_linked(above: int | None, owner: str) -> None:
    """Group 3 lost its states at the first two positions to two requests; where it has the first again, the second."""
    lost = {"positions": [2 * BLOCK, BLOCK], "fingerprints": at("ab") + at("a"), "ages": [1, 1], "blocks": [8, 7]}
    records = [
        evict(1, 3, keys=[], **lost), step(2, owners={7: "p", 8: "q"}),
        lookup(3, "again", fingerprints=prints("abcdefg"), **{**MISS, "above": [None, None, None, above]}), step(4, 1),
    ]  # fmt: skip
    assert linked(*records).attributes[names.EVICT_EVICTOR_REQUEST_ID] == owner


@pytest.mark.parametrize("record", [Reset(4, 0, 5), None])
def test_after_a_reset_or_a_hole_nothing_older_is_to_blame(record: Record | None) -> None:
    between = [record] if record is not None else []
    assert links(*produced("first", "abcdefg"), *between, *needs(5, "again", "abcdefg", 6 * BLOCK))["again"] == set()


def test_without_attention_the_last_state_that_was_refused_is_linked() -> None:
    mamba = replica(**{names.GROUPS_KIND: ["mamba"] * 3})
    missed = lookup(
        4,
        "again",
        fingerprints=prints("abcXYZ"),
        uncached=0,
        passes=[GroupPass([0, 1, 2], 11909, 0, 0, BLOCK)],
        above=[None] * 3,
    )
    ((reason, _),) = links(mamba, *produced("first", "abcdefg"), missed)["again"]
    assert reason == names.LINK_REFUSED


@pytest.mark.parametrize("changes", [{"skipped": True}, {"hit": 11200}])
def test_a_lookup_that_lost_nothing_has_no_links(changes: dict[str, Any]) -> None:
    assert links(*produced("first", "abcdefg"), *needs(4, "again", "abcdefg", 6 * BLOCK, **changes))["again"] == set()


def test_the_tables_are_bounded() -> None:
    causes = Causes(limit=100)
    settings = read_settings(ATTRIBUTES)
    known = Prints()
    for number in range(5_000):
        name = number.to_bytes(8, "big")
        known.look_up(BLOCK, name)
        causes.on_store(store(1, masked=[(BLOCK, BLOCK, BLOCK)], missing=[]), known, b"", new_root(), settings)
        gone = evict(1, positions=[BLOCK], fingerprints=name + b"", keys=[], ages=[1], blocks=[1])
        causes.on_evict(gone, GatheredEvicts(gone))
        assert len(causes) <= 200
    assert len(causes) >= 100


def test_what_is_asked_for_stays() -> None:
    table: Recent[int] = Recent(10)
    table.put(b"asked", 1)
    for number in range(100):
        table.put(bytes([number]), number)
        assert table.get(b"asked") == 1
        assert len(table) <= 11
    assert table.get(bytes([0])) is None
    table.forget([b"asked"])
    assert table.get(b"asked") is None


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=20))
def test_many_at_once_are_as_one_by_one(puts: list[list[int]]) -> None:
    one: Recent[int] = Recent(10)
    many: Recent[int] = Recent(10)
    for value, numbers in enumerate(puts):
        keys = [bytes([number]) for number in numbers]
        for key in keys:
            one.put(key, value)
        many.put_all(keys, value)
        assert len(many) <= 10
        latest = {key: one.get(key) for key in keys[-5:]}
        assert {key: many.get(key) for key in latest} == latest


def causes_of(spans: Sequence[Read], lookup_: Read) -> list[tuple[str, Read]]:
    """Return reason and span of each link."""
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    return [
        (attributes[names.LINK_REASON], by_id[link])
        for link, attributes in zip(lookup_.links, lookup_.link_attributes, strict=True)
    ]


@pytest.mark.vllm
def test_the_model_case_s_second_send_names_the_first_one_s_store(lab: Labs, tmp_path: Path) -> None:
    """vLLM 0.28: the chunk of the first send that ended at 9,600 had the state, and the mask refused it."""
    out = tmp_path / "spans.jsonl"
    lab["0.28.0"].run(shipped("model_case"), out)
    spans = read_lines(out)
    first, second, *others = sorted(named(spans, names.LOOKUP), key=lambda span: span.start)
    assert second[names.REQUEST_ID] == "repeat-0"
    ((reason, refusing),) = causes_of(spans, second)
    assert (reason, refusing.name) == (names.LINK_REFUSED, names.STORE)
    assert (refusing[names.REQUEST_ID], refusing[names.STORE_CHUNK_END]) == ("cold", 9600)
    masked = dict(zip(refusing[names.GROUP_IDS], refusing[names.STORE_MASKED], strict=True))
    assert [masked[group] for group in (0, 1, 2)] == ["9600"] * 3
    assert [lookup_.links for lookup_ in (first, *others)] == [[]] * 3


@pytest.mark.vllm
@pytest.mark.parametrize("groups", [FULL, HYBRID])
def test_an_eviction_is_named_by_whoever_missed_it(lab: Labs, groups: Any, tmp_path: Path) -> None:
    """A prompt that fills the pool pushes the first one out; the second send of that links to what it pushed out."""
    sends = [request("first", ("a", 3200)), request("filler", ("b", 6400)), request("again", ("a", 3200))]
    blocks = 16 if groups is FULL else 1600
    pool = {"block_size": blocks, "num_gpu_blocks": 402 if groups is FULL else 14}
    out = tmp_path / "spans.jsonl"
    lab["0.32.0"].run(scenario(sends, groups, **pool), out)
    spans = read_lines(out)
    (again,) = [span for span in named(spans, names.LOOKUP) if span[names.REQUEST_ID] == "again"]
    assert again[names.LOOKUP_HIT_TOKENS] == 0
    found = causes_of(spans, again)
    assert found
    assert {(reason, span.name) for reason, span in found} == {(names.LINK_EVICTED, names.EVICT)}
    assert {span.attributes.get(names.EVICT_EVICTOR_REQUEST_ID) for _, span in found} == {"filler"}


@settings(deadline=None)
@given(
    st.integers(0, 6), st.integers(0, 10), st.integers(0, 6), st.integers(0, 10), st.integers(0, 14),
    st.integers(1, 4), st.integers(-1, 30), st.integers(1, 3), st.integers(1, 6),
)  # fmt: skip
def test_fingerprints_of_a_run_are_those_of_its_positions(
    first: int, size: int, tail_first: int, tail: int, start: int, step: int, more: int, hash_block: int, grid: int
) -> None:
    known = Prints(first, bytes(range(8 * size)), tail_first, bytearray(range(100, 100 + 8 * tail)))
    positions = [position for position in range(start, start + more + 1, step) if position % grid == 0]
    found = [known.at(position, hash_block) for position in positions]
    assert known.along((start, start + more, step), grid, hash_block) == list(filter(None, found))
