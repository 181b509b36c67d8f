"""Records that a run on the lab makes seldom or never: the sidecar's spans of them against the registry."""

from pathlib import Path
from typing import Any

from sidecar.support import Peer, evict, hello, lookup, replica, step, store, whole_request

from otel_cache.semconv import names
from scripts.semconv.registry import load

from .rules import problems, read_lines, seen

REGISTRY = load()


def test_spans_of_records_are_as_registered(start: Any, socket_path: str, tmp_path: Path) -> None:
    """Evictions of each reason, a reset, a gap, a store from elsewhere, a request without a lookup and an end."""
    out = tmp_path / "spans.jsonl"
    sidecar = start(out)
    peer = Peer(socket_path, hello())
    peer.send(*whole_request())
    peer.send(
        evict(20, reason="replaced"),
        evict(21, evictor=""),
        store(22, request="elsewhere"),
        step(23, 2),
        lookup(24, "skipped", hit=0, skipped=True, passes=[], above=[], fingerprints=b"", common=b"", uncached=0),
        lookup(
            25, "keys", key=b"12345678", lora=b"12345678", salt=b"12345678", items=[(3, b"12345678")], plain=b"p" * 8
        ),
        lookup(26, "session", session=b"12345678", connector=True),
    )
    peer.send(replica(27, handle=1))
    sidecar.stop()

    found = {text for line in read_lines(out) for text in problems(line, REGISTRY)}
    # The replica of these records has few settings, and no resource is to be judged by them.
    assert sorted(text for text in found if not text.startswith("resource")) == []
    made = {(span, each) for span, attributes in seen(out).items() for each in attributes}
    assert made >= {
        (names.EVICT, names.EVICT_RESET),
        (names.EVICT, names.EVICT_REASON),
        (names.EVICT, names.MISSING_RECORDS),
        (names.STORE, names.STORE_ORIGIN),
    }
