"""A prefix that all requests share costs no more time and memory than prompts that share nothing."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from analyzers.analysis import analyze
from analyzers.model import Capture, Life
from analyzers.readers import schemas
from otel_cache.semconv import names
from otel_cache.semconv.grid import common_grid

BLOCK, TRUNK, PROMPT = 512, 512, 1024
"""Tokens."""
REQUESTS = 1200
REPLICAS = 2
FACTOR = 3
"""A cost per request that grows with the requests before it would be hundreds of times as much."""
ATTRIBUTES = {
    names.GROUPS_KIND: [names.KIND_FULL_ATTENTION],
    names.GROUPS_BLOCK_SIZE: [BLOCK],
    names.GROUPS_WINDOW: [0],
    names.GROUPS_FLAGGED: [False],
    names.GROUPS_DROPS: [False],
    names.GROUPS_FINE_GRAINED: [False],
    names.GROUPS_LOOKUP_ORDER: ["0"],
    names.HIT_ALIGNMENT: BLOCK,
    names.HASH_BLOCK_SIZE: BLOCK,
    names.SCHEDULER_BLOCK_SIZE: BLOCK,
    names.HASH_LOOKAHEAD_TOKENS: 0,
    names.PARTIAL_HITS: False,
    names.PROOF_LIMIT: names.PROOF_LAST_TOKEN,
    names.PREFIX_CACHING: True,
    names.RETENTION_INTERVAL: names.RETENTION_DENSE,
}


def fingerprint(request: int, position: int, grid: int, trunk: bool) -> bytes:
    """Return what names a request's prefix up to `position` on one of two grids: the same for all in the trunk."""
    owner = 0 if trunk and position <= TRUNK else request + 1
    return (owner << 32 | position << 1 | grid).to_bytes(8, "little")


def frame(schema: schemas.Schema, rows: Iterator[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a frame, what they leave out null."""
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def capture(replicas: int, trunk: bool) -> Capture:
    """Return what `REQUESTS` prompts leave, one after the other, round robin over replicas with unlimited pools."""

    def common(index: int, sequence: int) -> dict[str, Any]:
        time = 1000 * index + sequence % 2
        return {
            "life": index % replicas, "sequence": sequence, "number": index // replicas * 2 + sequence % 2,
            "missing": 0, "start": time, "end": time, "trace_id": f"{index + 1:032x}",
            "span_id": f"{sequence + 1:016x}", "parent_span_id": "", "request_id": f"r{index}",
        }  # fmt: skip

    def lookups() -> Iterator[dict[str, Any]]:
        for index in range(REQUESTS):
            hit = TRUNK if trunk and index >= replicas else 0
            grid = range(hit + BLOCK, PROMPT + 1, BLOCK)
            yield common(index, 2 * index) | {
                "prompt_tokens": PROMPT, "hit_tokens": hit, "max_hit_tokens": PROMPT - 1,
                "uncached_common_prefix_tokens": 0, "attempts": 1, "admitted_tokens": hit, "admitted": True,
                "skipped": False, "first": hit + BLOCK, "items": "", "external_tokens": 0, "discarded_tokens": 0,
                "connector": False, "ladder": b"", "plain": b"", "key": b"", "lora": b"", "salt": b"",
                "values": b"".join(fingerprint(index, position, 0, trunk) for position in grid),
                "hit_fingerprint": fingerprint(index, hit, 0, trunk) if hit else b"",
                "common": b"".join(fingerprint(index, each, 1, trunk) for each in common_grid(hit, PROMPT)),
                "prompt_digest": fingerprint(index, PROMPT, 0, trunk),
            }  # fmt: skip

    def stores() -> Iterator[dict[str, Any]]:
        for index in range(REQUESTS):
            hit = TRUNK if trunk and index >= replicas else 0
            yield common(index, 2 * index + 1) | {
                "origin": names.ORIGIN_PREFILL, "chunk_start": hit, "chunk_end": PROMPT, "group": 0,
                "stored": f"{hit + BLOCK}-{PROMPT}/{BLOCK}", "masked": "", "not_materialized": "", "wanted": "",
                "values": b"",
            }  # fmt: skip

    return Capture(
        lives=[Life(index, f"replica-{index}", f"life-{index}", ATTRIBUTES) for index in range(replicas)],
        lookups=frame(schemas.LOOKUPS, lookups()),
        groups=frame(schemas.GROUPS, iter(())),
        stores=frame(schemas.STORES, stores()),
        evicts=frame(schemas.EVICTS, iter(())),
        steps=frame(schemas.STEPS, iter(())),
        requests=frame(schemas.REQUESTS, iter(())),
        usages=frame(schemas.USAGES, iter(())),
        counters=frame(schemas.COUNTERS, iter(())),
        spans=2 * REQUESTS,
        foreign_spans=0,
        skipped_lines=0,
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the processor's time that `work` takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes of Python's memory that `work` holds at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_trunk_costs_nothing() -> None:
    """1,200 prompts of 1,024 tokens with their first 512 in common, and with nothing, in turn in one process."""
    shared, apart = capture(REPLICAS, trunk=True), capture(REPLICAS, trunk=False)
    analysis = analyze(shared)
    assert analysis.hit_tokens == (REQUESTS - REPLICAS) * TRUNK
    assert not {"unknown", "unexplained"} & set(analysis.lost)
    assert analyze(apart).lost == {"cold": REQUESTS * PROMPT}
    ratios = [seconds(lambda: analyze(shared)) / seconds(lambda: analyze(apart)) for _ in range(2)]
    assert min(ratios) < FACTOR, ratios
    assert peak(lambda: analyze(shared)) < FACTOR * peak(lambda: analyze(apart))
