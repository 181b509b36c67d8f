"""Prometheus scrapes what the collector counts, and the numbers are those of the spans."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from sidecar.support import Read, named

from otel_cache.semconv import names

from .load import EXPORT_SECONDS, hybrid, plenty, spans_of, traced
from .programs import Programs, Prometheus, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
BLOCKS = {
    "mamba": names.EVICT_MAMBA_BLOCKS,
    "full_attention": names.EVICT_FULL_ATTENTION_BLOCKS,
    "sliding_window": names.EVICT_SLIDING_WINDOW_BLOCKS,
}
COMMON = {"instance", "job", "service_name", "vllm_model", "vllm_replica_id", "otel_scope_name", "otel_scope_version"}


def scraped(prometheus: Prometheus, metric: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric, summed by replica and these labels."""
    by = ", ".join(["vllm_replica_id", *labels])
    result = prometheus.query(f"sum by ({by}) ({metric})")
    return {
        tuple(each["metric"].get(label, "") for label in ("vllm_replica_id", *labels)): float(each["value"][1])
        for each in result
    }


def counted(spans: Iterable[Read], key: Callable[[Read], tuple[str, ...]], amount: Callable[[Read], float]) -> Any:
    """Return the sums of `amount` by replica and `key`."""
    sums: Counter[tuple[str, ...]] = Counter()
    for span in spans:
        sums[span.resource[names.REPLICA_ID], *key(span)] += amount(span)
    return dict(sums)


def test_metrics_are_the_sums_of_the_spans(lab: Labs, programs: Programs, tmp_path: Path) -> None:
    """Tokens, losses by what limited the hit, evictions by kind of group, durations; over two lives of a replica."""
    jaeger = programs.jaeger()
    collector = programs.collector(
        "dev.yaml",
        OTEL_CACHE_COLLECTOR_BACKEND=jaeger.grpc,
        OTEL_CACHE_COLLECTOR_FILE=str(tmp_path / "collector" / "spans.jsonl"),
    )
    prometheus = programs.prometheus({"spans": collector.spanmetrics})
    with traced(lab["0.32.0"], tmp_path / "load", f"http://{collector.grpc}") as load:
        load.run(hybrid("one"))
        load.run(hybrid("two"))
        load.run(plenty("three", 50))
        load.await_exported()
    spans = spans_of(load.out)
    steps = named(spans, names.STEP)
    wait_until(
        lambda: sum(scraped(prometheus, "vllm_scheduler_step_duration_seconds_count").values()) == len(steps),
        "Prometheus has scraped all steps",
        EXPORT_SECONDS,
    )
    admitted = [span for span in named(spans, names.LOOKUP) if span[names.LOOKUP_ADMITTED]]
    assert {span[names.LOOKUP_LIMITED_BY] for span in admitted} > {"no_match"}

    def nothing(span: Read) -> tuple[str, ...]:
        return ()

    def limit(span: Read) -> tuple[str, ...]:
        return (span[names.LOOKUP_LIMITED_BY],)

    def asked(span: Read) -> float:
        return float(span[names.LOOKUP_PROMPT_TOKENS])

    def hit(span: Read) -> float:
        return float(span[names.LOOKUP_ADMITTED_TOKENS])

    assert scraped(prometheus, "vllm_kv_cache_asked_tokens_total") == counted(admitted, nothing, asked)
    assert scraped(prometheus, "vllm_kv_cache_hit_tokens_total") == counted(admitted, nothing, hit)
    lost = scraped(prometheus, "vllm_kv_cache_lost_tokens_total", "vllm_kv_cache_lookup_limited_by")
    assert lost == counted(admitted, limit, lambda span: asked(span) - hit(span))
    lookups = scraped(prometheus, "vllm_kv_cache_lookups_total", "vllm_kv_cache_lookup_limited_by")
    assert lookups == counted(admitted, limit, lambda span: 1)
    shortfall = scraped(prometheus, "vllm_kv_cache_group_shortfall_tokens_total")
    assert shortfall == counted(admitted, nothing, lambda span: span[names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS])
    assert sum(shortfall.values()) > 0

    evicts = named(spans, names.EVICT)
    blocks: Counter[tuple[str, str]] = Counter()
    for span in evicts:
        kinds = span.resource[names.GROUPS_KIND]
        for group, count in zip(span[names.GROUP_IDS], span[names.EVICT_BLOCKS], strict=True):
            blocks[span.resource[names.REPLICA_ID], kinds[group]] += count
    assert {kind for _, kind in blocks} == {"mamba", "full_attention"}
    assert scraped(prometheus, "vllm_kv_cache_evicted_blocks_total", "vllm_kv_cache_group_kind") == dict(blocks)

    took = scraped(prometheus, "vllm_scheduler_step_duration_seconds_sum")
    durations = counted(steps, nothing, lambda span: (span.end - span.start) / 1e9)
    assert took == {key: pytest.approx(value, rel=1e-6) for key, value in durations.items()}
    looked = scraped(prometheus, "vllm_kv_cache_lookup_duration_seconds_count")
    once = [span for span in named(spans, names.LOOKUP) if span[names.LOOKUP_ATTEMPTS] == 1]
    assert looked == counted(once, nothing, lambda span: 1)
    assert scraped(prometheus, "vllm_scheduler_prefill_tokens_total") == counted(
        steps, nothing, lambda span: span[names.STEP_PREFILL_TOKENS]
    )
    requests = scraped(prometheus, "vllm_engine_requests_total")
    assert requests == counted(named(spans, names.REQUEST), nothing, lambda span: 1)

    evidence = [span for span in spans if names.EVIDENCE_NUMBER in span.attributes]
    assert scraped(prometheus, "otel_cache_evidence_spans_total") == counted(evidence, nothing, lambda span: 1)
    for losses in ("otel_cache_lost_records_total", "otel_cache_undelivered_spans_total"):
        assert set(scraped(prometheus, losses).values()) == {0.0}, "there, and nothing was lost"
    no_label_has_an_id(prometheus, spans)


def no_label_has_an_id(prometheus: Prometheus, spans: list[Read]) -> None:
    """No id of a request, a trace, a span or a life is a label's value."""
    found = prometheus.query('{__name__=~"(vllm|otel_cache)_.+"}')
    assert len({each["metric"]["__name__"] for each in found}) > 15
    values = {value for each in found for value in each["metric"].values()}
    secret = {span.trace_id for span in spans} | {span.span_id for span in spans}
    secret |= {span.resource["service.instance.id"] for span in spans}
    secret |= {span[names.REQUEST_ID] for span in spans if names.REQUEST_ID in span.attributes}
    assert not values & secret
