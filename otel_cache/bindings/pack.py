"""From captured events to records; runs in the sender thread, never in the scheduler's.

Each function returns records that lack only their number, as functions of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from otel_cache.bindings.replica import Known, Replica, RequestState
from otel_cache.records import Chunk, Evict, GroupPass, Lookup, Record, Reset, Span, StepDone, Store
from otel_cache.records import Replica as ReplicaRecord
from otel_cache.records import Step as StepRecord
from otel_cache.semconv.positions import compress_positions

Numbered = Callable[[int], Record]
_LOST = bytes(8)


def announce(replica: Replica, time: int) -> list[Numbered]:
    """The replica was seen for the first time."""
    return [lambda n: ReplicaRecord(n, replica.handle, time, replica.attributes)]


def lookup(
    replica: Replica,
    request: Any,
    start: int,
    end: int,
    tokens: int,
    limit: int,
    hit: int,
    uncached: int,
    skipped: bool,
    passes: Sequence[tuple[Any, ...]],
    above: list[int | None],
) -> list[Numbered]:
    """One call of the local prefix lookup."""
    state = replica.request_state(request)
    state.planned = tokens
    values = hit_value = ladder = common = whole = b""
    if state.chain is not None:
        chain = state.chain
        whole = chain.whole(state.tokens, tokens)
        last = min(chain.upto, (tokens - replica.lookahead) // replica.hash_block * replica.hash_block)
        values, hit_value = chain.between(hit, last), chain.at(hit)
        ladder, common = chain.ladder(hit), chain.common(hit, tokens)
        state.named = max(state.named, last)
    headers = getattr(request, "trace_headers", None) or {}
    return [
        lambda n: Lookup(
            sequence=n,
            replica=replica.handle,
            start=start,
            end=end,
            request=request.request_id,
            tokens=tokens,
            prompt_tokens=request.num_prompt_tokens,
            limit=limit,
            hit=hit,
            uncached=uncached,
            skipped=skipped,
            passes=[GroupPass(*one) for one in passes],
            above=above,
            fingerprints=values,
            hit_fingerprint=hit_value,
            ladder=ladder,
            common=common,
            digest=whole,
            key=state.key,
            traceparent=str(headers.get("traceparent", "")),
            arrival=int(getattr(request, "arrival_time", 0.0) * 1e9),
        )
    ]


def store(
    replica: Replica,
    request: Any,
    time: int,
    group: int,
    first_block: int,
    block_size: int,
    blocks: Sequence[Any],
    keys: Sequence[Any],
    mask: Sequence[bool] | None,
) -> list[Numbered]:
    """A group's manager went over full blocks: what it registered, refused, or did not have."""
    state = replica.request_state(request)
    first, last = (first_block + 1) * block_size, (first_block + len(blocks)) * block_size
    fresh_from, fresh = _extend(replica, state, last)
    positions = range(first, last + 1, block_size)
    at = partial(_at, state)
    if None not in keys:  # a dense group: every block was registered
        runs: list[list[Span]] = [[(first, last, block_size)], [], [], []]
        named: Iterable[tuple[Any, int]] = zip(keys, positions, strict=True)
    else:
        nulls = [block.is_null for block in blocks]
        rows = list(zip(positions, keys, nulls, mask or [False] * len(blocks), strict=True))
        chosen = (
            [position for position, key, _, _ in rows if key is not None],
            [position for position, key, null, _ in rows if key is None and not null],
            [position for position, _, null, _ in rows if null],
            [position for position, _, null, wanted in rows if null and wanted],
        )
        runs = [compress_positions(each, block_size) for each in chosen]
        named = ((key, position) for position, key, _, _ in rows if key is not None)
    replica.known.update((key, Known(group, position, at(position), state.key, time)) for key, position in named)
    replica.storing.add(request.request_id)
    return [_store(replica, request, time, group, runs, fresh_from, fresh)]


def partial_store(replica: Replica, request: Any, time: int, group: int, position: int, key: Any) -> list[Numbered]:
    """A block was registered at a position inside it."""
    state = replica.request_state(request)
    fresh_from, fresh = _extend(replica, state, position)
    replica.known[key] = Known(group, position, _at(state, position), state.key, time)
    replica.storing.add(request.request_id)
    runs: list[list[Span]] = [[(position, position, 1)], [], [], []]
    return [_store(replica, request, time, group, runs, fresh_from, fresh)]


def _extend(replica: Replica, state: RequestState, upto: int) -> tuple[int, bytes]:
    """Return the fingerprints up to `upto` that were not sent yet, and the position of the first of them."""
    if state.chain is None or upto <= state.named:
        return 0, b""
    state.chain.extend(state.tokens, min(upto + replica.lookahead, len(state.tokens)))
    last = min(upto // replica.hash_block * replica.hash_block, state.chain.upto)
    if last <= state.named:
        return 0, b""
    first, state.named = state.named + replica.hash_block, last
    return first, state.chain.between(first - replica.hash_block, last)


def _at(state: RequestState, position: int) -> bytes:
    return (state.chain.at(position) if state.chain else b"") or _LOST


def _store(
    replica: Replica, request: Any, time: int, group: int, runs: list[list[Span]], fresh_from: int, fresh: bytes
) -> Numbered:
    stored, masked, missing, wanted = runs
    return lambda n: Store(
        sequence=n,
        replica=replica.handle,
        time=time,
        request=request.request_id,
        group=group,
        stored=stored,
        masked=masked,
        missing=missing,
        wanted=wanted,
        first_fingerprint=fresh_from,
        fingerprints=fresh,
    )


def evict(replica: Replica, time: int, removed: Mapping[Any, int], reason: str) -> list[Numbered]:
    """Keys left the cache. `removed`: block id by key."""
    grouped: dict[int, list[tuple[int, Known]]] = {}
    for key, block in removed.items():
        known = replica.known.pop(key, None)
        if known is None:  # stored before the instrumentation saw this scheduler
            known = Known(replica.group_of(key), 0, _LOST, b"", time)
        grouped.setdefault(known.group, []).append((block, known))
        if reason == "allocation":
            replica.evicted_blocks.add(block)
    return [partial(_evict, replica.handle, time, group, lost, reason) for group, lost in grouped.items()]


def _evict(handle: int, time: int, group: int, lost: Sequence[tuple[int, Known]], reason: str, number: int) -> Evict:
    return Evict(
        sequence=number,
        replica=handle,
        time=time,
        group=group,
        positions=[known.position for _, known in lost],
        fingerprints=b"".join(known.fingerprint for _, known in lost),
        keys=[known.key for _, known in lost] if any(known.key for _, known in lost) else [],
        ages=[max(time - known.time, 0) for _, known in lost],
        blocks=[block for block, _ in lost],
        reason=reason,
    )


def step(
    replica: Replica, output: Any, index: int, start: int, end: int, running: int, waiting: int, usage: float
) -> list[Numbered]:
    """`Scheduler.schedule` returned `output`."""
    scheduled: dict[str, int] = output.num_scheduled_tokens
    chunks: list[Chunk] = []
    admitted: dict[str, int] = {}
    prefill_tokens = decode_tokens = 0
    cached = output.scheduled_cached_reqs
    resumed = getattr(cached, "resumed_req_ids", ())
    computed = [(new.req_id, new.num_computed_tokens, True) for new in output.scheduled_new_reqs]
    computed += [
        (name, done, name in resumed) for name, done in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    ]
    for name, done, admits in computed:
        count = scheduled.get(name, 0)
        if admits:
            admitted[name] = done
        state = replica.requests.get(name)
        prefill = admits if state is None else done < state.planned
        if prefill:
            prefill_tokens += count
        else:
            decode_tokens += count
        if prefill or name in replica.storing:
            chunks.append(Chunk(name, done, done + count, prefill))
    replica.storing.clear()
    finished = list(output.finished_req_ids)
    owners = _block_owners(replica, output)
    preempted = list(getattr(output, "preempted_req_ids", None) or ())
    for name in finished:
        replica.requests.pop(name, None)
    return [
        lambda n: StepRecord(
            sequence=n,
            replica=replica.handle,
            index=index,
            start=start,
            end=end,
            running=running,
            waiting=waiting,
            scheduled=len(scheduled),
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            chunks=chunks,
            admitted=admitted,
            finished=finished,
            preempted=preempted,
            usage=usage,
            owners=owners,
        )
    ]


def _block_owners(replica: Replica, output: Any) -> dict[int, str]:
    """Return which requests were given the blocks whose keys were pushed out in this step."""
    if not replica.evicted_blocks:
        return {}
    tables = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    tables += [(name, ids) for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True) if ids]
    evicted = replica.evicted_blocks
    owners = {block: name for name, table in tables for blocks in table for block in blocks if block in evicted}
    evicted.clear()
    return owners


def done(replica: Replica, index: int, start: int, end: int) -> list[Numbered]:
    """The output of step `index` was processed between `start` and `end`."""
    return [lambda n: StepDone(n, replica.handle, index, start, end)]


def reset(replica: Replica, time: int) -> list[Numbered]:
    """The prefix cache was cleared."""
    replica.known.clear()
    return [lambda n: Reset(n, replica.handle, time)]
