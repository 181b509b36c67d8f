"""Observes one scheduler from outside, by what it returns and what its block pool holds. Runs in the lab's child.

It knows nothing of the instrumentation: what it finds is what the spans are held against.
"""

import hashlib
from collections import Counter
from typing import Any

import msgspec

from analyzers.vllm_lab.results import ReplicaResult


class Observer:
    """Counts calls, drafts and, if asked, keys of the cache."""

    def __init__(self, scheduler: Any, cache: bool) -> None:
        """Observe `scheduler`; with `cache` the map of its block pool too."""
        self._pool = scheduler.kv_cache_manager.block_pool
        self._cache = cache
        self._watched: Any = None
        self._registered: Counter[int] = Counter()
        self._added: Counter[int] = Counter()
        self._removed: Counter[int] = Counter()
        self._cleared: Counter[int] = Counter()
        self._peak: Counter[int] = Counter()
        self._hash = hashlib.sha256()
        self._drafted = self._accepted = 0
        self._queries = self._hits = 0
        self.steps = 0
        self._watch()

    def scheduled(self, step: Any) -> None:
        """Take what `schedule` returned."""
        self.steps += 1
        if self._cache and self._added.total() - self._removed.total() - self._cleared.total() > self._peak.total():
            self._peak = self._added - self._removed - self._cleared
        cached = step.scheduled_cached_reqs
        self._take(
            dict(step.num_scheduled_tokens),
            {new.req_id: [new.block_ids, new.num_computed_tokens] for new in step.scheduled_new_reqs},
            dict(zip(cached.req_ids, zip(cached.new_block_ids, cached.num_computed_tokens, strict=True), strict=True)),
            step.scheduled_spec_decode_tokens,
            sorted(step.finished_req_ids),
            sorted(getattr(step, "preempted_req_ids", None) or ()),
        )

    def updated(self, outputs: Any) -> None:
        """Take what `update_from_output` returned: a client's outputs each."""
        for client in outputs.values():
            for each in client.outputs:
                reason = None if each.finish_reason is None else str(each.finish_reason)
                self._take(each.request_id, each.new_token_ids, reason, each.stop_reason)
            stats = getattr(client.scheduler_stats, "spec_decoding_stats", None)
            if stats is not None:
                self._drafted += stats.num_draft_tokens
                self._accepted += stats.num_accepted_tokens
            cache = getattr(client.scheduler_stats, "prefix_cache_stats", None)
            if cache is not None:
                self._queries += cache.queries
                self._hits += cache.hits

    def reset(self) -> None:
        """Take note that the cache was cleared."""
        if self._cache:
            self._cleared += Counter(_group(key) for key in self._watched._cache)
            self._watch()

    def result(self) -> ReplicaResult:
        """Return what was found."""
        return ReplicaResult(
            steps=self.steps,
            drafted=self._drafted,
            accepted=self._accepted,
            digest=self._hash.hexdigest(),
            queries=self._queries,
            hits=self._hits,
            registered=dict(+self._registered),
            added=dict(+self._added),
            removed=dict(+self._removed),
            cleared=dict(+self._cleared),
            peak=dict(+self._peak),
        )

    def _take(self, *parts: Any) -> None:
        self._hash.update(msgspec.json.encode(msgspec.to_builtins(parts), order="sorted"))

    def _watch(self) -> None:
        """Count what the pool puts into its map of keys and takes out; a reset gives it another map."""
        held = self._pool.cached_block_hash_to_block
        if not self._cache or held is self._watched:
            return
        self._watched = held
        insert, pop = held.insert, held.pop
        from vllm.v1.core.kv_cache_utils import get_group_id

        def observed_insert(key: Any, block: Any) -> None:
            group = get_group_id(key)
            self._registered[group] += 1
            if held.get_one_block(key) is None:
                self._added[group] += 1
            insert(key, block)

        def observed_pop(key: Any, block_id: int) -> Any:
            popped = pop(key, block_id)
            if popped is not None and held.get_one_block(key) is None:
                self._removed[get_group_id(key)] += 1
            return popped

        held.insert, held.pop = observed_insert, observed_pop


def _group(key: Any) -> int:
    from vllm.v1.core.kv_cache_utils import get_group_id

    return int(get_group_id(key))
