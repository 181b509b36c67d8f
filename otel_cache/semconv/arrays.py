"""Which attributes are arrays: a back end that knows scalars alone keeps an array as a string of its JSON.

Generated from `otel_cache/semconv/registry/*.yaml` by `make semconv`: edit those, not this.
"""

ARRAYS = frozenset(
    [
        "vllm.kv_cache.evict.age",
        "vllm.kv_cache.evict.blocks",
        "vllm.kv_cache.evict.evictor_groups",
        "vllm.kv_cache.evict.fingerprints",
        "vllm.kv_cache.evict.keys",
        "vllm.kv_cache.evict.positions",
        "vllm.kv_cache.fingerprint.common",
        "vllm.kv_cache.fingerprint.ladder",
        "vllm.kv_cache.fingerprint.plain",
        "vllm.kv_cache.fingerprint.values",
        "vllm.kv_cache.group.ids",
        "vllm.kv_cache.group.pass.alignment",
        "vllm.kv_cache.group.pass.asked_tokens",
        "vllm.kv_cache.group.pass.dropped_tokens",
        "vllm.kv_cache.group.pass.hit_tokens",
        "vllm.kv_cache.groups.block_size",
        "vllm.kv_cache.groups.drops_for_speculation",
        "vllm.kv_cache.groups.fine_grained",
        "vllm.kv_cache.groups.flagged_for_speculation",
        "vllm.kv_cache.groups.kind",
        "vllm.kv_cache.groups.lookup_order",
        "vllm.kv_cache.groups.window",
        "vllm.kv_cache.key.item.digests",
        "vllm.kv_cache.key.item.offsets",
        "vllm.kv_cache.lookup.limiting_groups",
        "vllm.kv_cache.store.masked",
        "vllm.kv_cache.store.not_materialized",
        "vllm.kv_cache.store.stored",
        "vllm.kv_cache.store.wanted",
    ]
)
