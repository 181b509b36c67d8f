"""The columns of a capture's frames, with their types: the contract of `analyzers.model.Capture`, to the letter."""

import polars as pl

_SHARED = {
    "life": pl.Int32(),
    "sequence": pl.Int64(),
    "number": pl.Int64(),
    "missing": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "trace_id": pl.String(),
    "span_id": pl.String(),
    "parent_span_id": pl.String(),
}

Schema = dict[str, pl.DataType]

LOOKUPS: Schema = {
    **_SHARED,
    "request_id": pl.String(),
    "prompt_tokens": pl.Int64(),
    "hit_tokens": pl.Int64(),
    "max_hit_tokens": pl.Int64(),
    "uncached_common_prefix_tokens": pl.Int64(),
    "attempts": pl.Int64(),
    "admitted_tokens": pl.Int64(),
    "admitted": pl.Boolean(),
    "skipped": pl.Boolean(),
    "first": pl.Int64(),
    "values": pl.Binary(),
    "hit_fingerprint": pl.Binary(),
    "ladder": pl.Binary(),
    "common": pl.Binary(),
    "prompt_digest": pl.Binary(),
    "plain": pl.Binary(),
    "key": pl.Binary(),
    "lora": pl.Binary(),
    "salt": pl.Binary(),
    "items": pl.String(),
    "external_tokens": pl.Int64(),
    "discarded_tokens": pl.Int64(),
    "connector": pl.Boolean(),
}

GROUPS: Schema = {
    **_SHARED,
    "group": pl.Int32(),
    "kind": pl.String(),
    "block_size": pl.Int64(),
    "hit_tokens": pl.Int64(),
    "stored_below": pl.Int64(),
    "stored_above": pl.Int64(),
    "asked_tokens": pl.List(pl.Int64()),
    "pass_hit_tokens": pl.List(pl.Int64()),
    "dropped_tokens": pl.List(pl.Int64()),
    "alignment": pl.List(pl.Int64()),
}

STORES: Schema = {
    **_SHARED,
    "request_id": pl.String(),
    "origin": pl.String(),
    "chunk_start": pl.Int64(),
    "chunk_end": pl.Int64(),
    "group": pl.Int32(),
    "stored": pl.String(),
    "masked": pl.String(),
    "not_materialized": pl.String(),
    "wanted": pl.String(),
    "first": pl.Int64(),
    "values": pl.Binary(),
}

EVICTS: Schema = {
    **_SHARED,
    "group": pl.Int32(),
    "positions": pl.String(),
    "fingerprints": pl.Binary(),
    "keys": pl.Binary(),
    "ages": pl.List(pl.Int64()),
    "evictor_request_id": pl.String(),
    "evictor_groups": pl.String(),
    "reason": pl.String(),
    "reset": pl.Boolean(),
}

STEPS: Schema = {
    **_SHARED,
    "index": pl.Int64(),
    "prefill_tokens": pl.Int64(),
    "decode_tokens": pl.Int64(),
    "running_requests": pl.Int64(),
    "waiting_requests": pl.Int64(),
    "preempted_requests": pl.Int64(),
    "pool_usage": pl.Float64(),
    "schedule_duration": pl.Float64(),
    "execute_duration": pl.Float64(),
}

REQUESTS: Schema = {
    **_SHARED,
    "request_id": pl.String(),
    "external_id": pl.String(),
    "session": pl.Binary(),
    "prompt_tokens": pl.Int64(),
    "hit_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "cache_read_tokens": pl.Int64(),
    "queue_duration": pl.Float64(),
    "time_to_first_token": pl.Float64(),
    "preemptions": pl.Int64(),
    "drafted_tokens": pl.Int64(),
    "accepted_tokens": pl.Int64(),
    "finish_reason": pl.String(),
}

USAGES: Schema = {
    "trace_id": pl.String(),
    "span_id": pl.String(),
    "parent_span_id": pl.String(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "name": pl.String(),
    "request_id": pl.String(),
    "prompt_tokens": pl.Int64(),
    "cache_read_tokens": pl.Int64(),
    "router_rank": pl.Int64(),
    "router_keys": pl.Int64(),
    "router_blocks": pl.Int64(),
    "endpoint": pl.String(),
    "routing_logic": pl.String(),
    "called": pl.String(),
}

COUNTERS: Schema = {
    "series": pl.String(),
    "name": pl.String(),
    "what": pl.String(),
    "time": pl.Int64(),
    "value": pl.Float64(),
    "delta": pl.Boolean(),
}
