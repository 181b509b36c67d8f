"""The columns of a capture's frames, with their types: the contract of `analyzers.model.Capture`, to the letter."""

import polars as pl

Schema = dict[str, pl.DataType]

SHARED: Schema = {
    "life": pl.Int32(),
    "sequence": pl.Int64(),
    "number": pl.Int64(),
    "missing": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
IDS: Schema = {"trace_id": pl.String(), "span_id": pl.String(), "parent_span_id": pl.String()}

LOOKUPS: Schema = {
    **SHARED,
    **IDS,
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
    **SHARED,
    "parent_span_id": pl.String(),
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
    **SHARED,
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
    **SHARED,
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
    **SHARED,
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
    **SHARED,
    **IDS,
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
    **IDS,
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

AT, SPAN, PARENT = "at", "span", "parent"
TRACE = ("trace_high", "trace_low")


def of_rows(frame: Schema) -> Schema:
    """Return the columns that the rows of a frame have while it is made.

    Identifiers are numbers, as in batches; `span` is there to tell rows apart, `at` is the number of the row's span.
    """
    made: Schema = {AT: pl.UInt32(), SPAN: pl.UInt64()}
    if "trace_id" in frame:
        made |= dict.fromkeys(TRACE, pl.UInt64())
    if "parent_span_id" in frame:
        made[PARENT] = pl.UInt64()
    return made | {name: dtype for name, dtype in frame.items() if name not in IDS}


def of_exact_rows(frame: Schema) -> Schema:
    """Return the columns of what `analyzers.readers.rows` makes for a frame."""
    return {**SHARED, **IDS, **frame}
