"""Ids that are drawn in batches, and the headers of W3C Trace Context."""

import os

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.trace import TraceState

from otel_cache.sidecar.ids import Context, new_child, new_root, new_span_id, parse_tracestate, read_context

MEMBERS = st.from_regex(r"[a-z0-9]{1,3}(@[a-z]{1,2})?=[ -~]{0,4}", fullmatch=True) | st.text("ab=@ \t,", max_size=5)


@given(st.lists(MEMBERS, max_size=40).map(",".join) | st.text())
@example(",".join(f"k{number}=v" for number in range(32)))
@example(",".join(f"k{number}=v" for number in range(33)))
@example("a=1,a=2")
@example(" a=1 ,\tb=2,,")
def test_tracestate_is_what_the_sdk_makes_of_it(header: str) -> None:
    assert parse_tracestate(header) == TraceState.from_header([header]).to_header()


def test_contexts_in_bytes() -> None:
    trace, span = bytes(range(1, 17)), bytes(range(1, 9))
    assert read_context(trace + span) == Context(trace, span)
    for nothing in (b"", trace, trace + bytes(8), bytes(16) + span, trace + span + b"0"):
        assert read_context(nothing) is None


def test_ids_do_not_come_twice() -> None:
    root = new_root()
    child = new_child(root)
    assert child.trace_id == root.trace_id
    drawn = [new_span_id() for _ in range(10_000)]
    assert len(set(drawn)) == len(drawn)
    assert all(len(value) == 8 and any(value) for value in drawn)
    assert len({new_root().trace_id[:8] for _ in range(100)}) == 100


def test_a_forked_process_draws_others() -> None:
    new_span_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_span_id())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 8)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 8
    assert theirs not in {new_span_id() for _ in range(1000)}
