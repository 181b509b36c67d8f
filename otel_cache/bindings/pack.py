"""From captured events to records; runs in the sender thread, never in the scheduler's.

Each function returns the records of one event; they are numbered from its first argument on.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from otel_cache.bindings.key_table import NO_FINGERPRINT, NO_SUMS, Lost
from otel_cache.bindings.replica import Replica, RequestState, Worker
from otel_cache.fingerprints import Sums
from otel_cache.records import (
    FINGERPRINT_BYTES,
    Chunk,
    Evict,
    Executed,
    Finished,
    GroupPass,
    Lookup,
    Record,
    RepeatedLookup,
    Reset,
    Span,
    StepDone,
    Store,
)
from otel_cache.records import Replica as ReplicaRecord
from otel_cache.records import Step as StepRecord
from otel_cache.semconv.grid import common_grid
from otel_cache.semconv.positions import compress_positions

MAX_PROBES = 64


def announce(number: int, source: Replica | Worker, time: int) -> list[Record]:
    """A scheduler or a worker was seen for the first time."""
    return [ReplicaRecord(number, source.handle, time, source.attributes)]


def lookup(
    number: int, replica: Replica, request: Any, start: int, end: int, step: int, outcome: tuple[Any, ...],
) -> list[Record]:  # fmt: skip
    """One call of the local prefix lookup."""
    tokens, limit, hit, uncached, skipped, connector, passes = outcome
    state = replica.request_state(request)
    state.planned, state.outcome = tokens, outcome
    values = hit_value = ladder = common = plain = whole = b""
    if state.chain is not None:
        chain = state.chain
        earlier = _earlier(replica, request, state, hit)
        chain.extend(state.tokens, tokens)
        last = min(chain.upto, (tokens - replica.lookahead) // replica.hash_block * replica.hash_block)
        values, whole = chain.between(hit, last), chain.whole()
        hit_value, ladder = earlier[:FINGERPRINT_BYTES], earlier[FINGERPRINT_BYTES:]
        common, plain = chain.common(hit, tokens), chain.plain(hit, tokens)
        state.named = max(state.named, last)
    headers = getattr(request, "trace_headers", None) or {}
    record = Lookup(
        sequence=number,
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
        above=[] if skipped else _stored_above(replica, request.block_hashes, hit, limit),
        fingerprints=values,
        hit_fingerprint=hit_value,
        ladder=ladder,
        common=common,
        digest=whole,
        key=state.key,
        traceparent=str(headers.get("traceparent", "")),
        arrival=int(getattr(request, "arrival_time", 0.0) * 1e9),
        tracestate=str(headers.get("tracestate", "")),
        plain=plain,
        lora=state.lora,
        salt=state.salt,
        items=state.items,
        session=state.session,
        step=step,
        connector=connector,
    )
    return [record]


def _stored_above(replica: Replica, hashes: Sequence[Any], hit: int, limit: int) -> list[int | None]:
    """Return per group the nearest hit-grid position above the hit at which it holds a key; None: none nearby."""
    grid, unit, keys = replica.alignment, replica.hash_block, replica.keys
    # Where one group decides alone, a hit ends where its keys do, or one step before.
    probes = MAX_PROBES if len(replica.block_sizes) > 1 else 1
    positions = range(hit + grid, min(limit, len(hashes) * unit, hit + probes * grid) + 1, grid)
    found: list[int | None] = []
    for block_size, suffix in zip(replica.block_sizes, replica.key_suffixes, strict=True):
        ends = (p for p in positions if replica.partial_hits or p % block_size == 0)
        found.append(next((p for p in ends if hashes[p // unit - 1] + suffix in keys), None))
    return found


def _earlier(replica: Replica, request: Any, state: RequestState, hit: int) -> bytes:
    """Return the fingerprints at the hit and on the ladder below it, and have the chain stand at the hit or before.

    They are those of the cache's own keys, where it still has all of them: then nothing before the hit is hashed.
    """
    chain = state.chain
    assert chain is not None
    if not hit:
        if chain.base:
            chain.resume(0, (0, 0))
        return b""
    positions = [hit, *ladder_positions(replica.hash_block, hit)]
    # The common grid takes no lookahead: what of it lies between the hit and the sums' end would be missing.
    if not chain.base <= hit <= chain.upto and not common_grid(hit, hit + replica.lookahead):
        known = _known(replica, request, hit)
        if known is not None:
            chain.resume(hit, known[1])
    if chain.base <= hit:
        if not chain.base:
            chain.extend(state.tokens, min(hit + replica.lookahead, len(state.tokens)))
        values = [chain.at(position) or _fingerprint(replica, request, position) for position in positions]
        if all(values):
            return b"".join(values)
    chain.resume(0, (0, 0))
    chain.extend(state.tokens, min(hit + replica.lookahead, len(state.tokens)))
    return b"".join(chain.at(position) for position in positions)


def ladder_positions(step: int, below: int) -> list[int]:
    """Return step, 2 * step, 4 * step, ... below `below`."""
    rungs = []
    position = step
    while position < below:
        rungs.append(position)
        position *= 2
    return rungs


def _known(replica: Replica, request: Any, position: int) -> tuple[bytes, Sums] | None:
    """Return fingerprint and sums of the request's prefix up to `position`, where a key of the cache stands for it."""
    index = position // replica.hash_block - 1
    hashes = request.block_hashes
    if not 0 <= index < len(hashes):
        return None
    for suffix in replica.key_suffixes:
        found = replica.keys.find(hashes[index] + suffix)
        if found is not None and found[0] != NO_FINGERPRINT:
            return found
    return None


def _fingerprint(replica: Replica, request: Any, position: int) -> bytes:
    """Return the fingerprint of the request's prefix up to `position`, where a key of the cache stands for it."""
    part = request.block_hashes[position // replica.hash_block - 1]
    for suffix in replica.key_suffixes:
        found = replica.keys.fingerprint(part + suffix)
        if found and found != NO_FINGERPRINT:
            return found
    return b""


def repeated(
    number: int, replica: Replica, request: Any, start: int, end: int, step: int, outcome: tuple[Any, ...]
) -> list[Record]:
    """The latest lookup of a request was made again, with the same outcome."""
    state = replica.requests.get(request.request_id)
    if state is None or state.outcome != outcome:
        return lookup(number, replica, request, start, end, step, outcome)
    return [RepeatedLookup(number, replica.handle, start, end, request.request_id, step)]


def store(
    number: int, replica: Replica, request: Any, time: int, group: int, first_block: int, block_size: int,
    blocks: Sequence[Any], keys: Sequence[Any], mask: Sequence[bool] | None,
) -> list[Record]:  # fmt: skip
    """A group's manager went over full blocks: what it registered, refused, or did not have."""
    state = replica.request_state(request)
    first, last = (first_block + 1) * block_size, (first_block + len(blocks)) * block_size
    fresh = _extend(replica, state, last)
    positions = range(first, last + 1, block_size)
    runs: list[list[Span]]
    if len(keys) == 1 and keys[0] is not None:  # a block that was decoded
        runs = [[(last, last, block_size)], [], [], []]
        replica.keys.add(keys, group, (last,), *_prefix(replica, request, state, last), state.key, time)
    elif all(keys):  # a dense group: every block was registered
        runs = [[(first, last, block_size)], [], [], []]
        _remember(replica, request, state, keys, group, positions, time)
    else:
        nulls = [block.is_null for block in blocks]
        rows = list(zip(positions, keys, nulls, mask or [False] * len(blocks), strict=True))
        stored = [position for position, key, _, _ in rows if key is not None]
        chosen = (
            stored,
            [position for position, key, null, _ in rows if key is None and not null],
            [position for position, _, null, _ in rows if null],
            [position for position, _, null, wanted in rows if null and wanted],
        )
        runs = [compress_positions(each, block_size) for each in chosen]
        if stored:
            _remember(replica, request, state, [key for key in keys if key is not None], group, stored, time)
    replica.storing.add(request.request_id)
    registered, refused, missing, wanted = runs
    return [
        Store(number, replica.handle, time, request.request_id, group, registered, refused, missing, wanted, *fresh)
    ]


def partial_store(
    number: int, replica: Replica, request: Any, time: int, group: int, position: int, key: Any
) -> list[Record]:
    """A block was registered at a position inside it."""
    state = replica.request_state(request)
    fresh = _extend(replica, state, position)
    _remember(replica, request, state, [key], group, [position], time)
    replica.storing.add(request.request_id)
    stored: list[Span] = [(position, position, 1)]
    return [Store(number, replica.handle, time, request.request_id, group, stored, [], [], [], *fresh)]


def _extend(replica: Replica, state: RequestState, upto: int) -> tuple[int, bytes]:
    """Return the position of the first fingerprint up to `upto` that was not sent yet, and all of them."""
    chain = state.chain
    if chain is None or upto <= state.named:
        return 0, b""
    chain.extend(state.tokens, min(upto + replica.lookahead, len(state.tokens)))
    last = min(upto // replica.hash_block * replica.hash_block, chain.upto)
    if last <= state.named:
        return 0, b""
    first, state.named = max(state.named, chain.base) + replica.hash_block, last
    return first, chain.between(first - replica.hash_block, last)


def _remember(
    replica: Replica, request: Any, state: RequestState, keys: Sequence[Any], group: int, positions: range | list[int],
    time: int,
) -> None:  # fmt: skip
    """Keep what each of `keys` stands for until it leaves the cache."""
    chain, unit = state.chain, replica.hash_block
    first, last = positions[0], positions[-1]
    in_a_row = last - first == (len(positions) - 1) * unit  # a group that keeps some leaves gaps
    if chain is not None and in_a_row and chain.base < first and last <= chain.upto and not first % unit:
        prints, sums = chain.between(first - unit, last), chain.sums_between(first - unit, last)
    else:
        found = [_prefix(replica, request, state, position) for position in positions]
        prints, sums = b"".join(one for one, _ in found), b"".join(other for _, other in found)
    replica.keys.add(keys, group, positions, prints, sums, state.key, time)


def _prefix(replica: Replica, request: Any, state: RequestState, position: int) -> tuple[bytes, bytes]:
    """Return fingerprint and sums up to `position`, zeros where they are not known."""
    if state.chain is not None and (found := state.chain.entry(position)):
        return found
    known = _known(replica, request, position) if not position % replica.hash_block else None
    return (known[0], known[1][0].to_bytes(8, "little") + known[1][1].to_bytes(8, "little")) if known else (
        NO_FINGERPRINT, NO_SUMS
    )  # fmt: skip


def evict(
    number: int, replica: Replica, time: int, blocks: Sequence[Any], keys: Sequence[Any], reason: str
) -> list[Record]:
    """Keys left the cache, each the last of its kind; `blocks` carried them."""
    ids = [block.block_id for block in blocks]  # quicker than a map
    if reason == "allocation":
        replica.evicted_blocks.update(ids)
    lost, unknown = replica.keys.remove(keys, ids, time)
    for index in unknown:  # stored before the instrumentation saw this scheduler
        lost.append(Lost(replica.group_of(keys[index]), [0], NO_FINGERPRINT, [], [0], [ids[index]]))
    return [
        Evict(
            number + offset, replica.handle, time, one.group, one.positions, one.fingerprints, one.extras, one.ages,
            one.blocks, reason,
        )
        for offset, one in enumerate(lost)
    ]  # fmt: skip


def reset(number: int, replica: Replica, time: int) -> list[Record]:
    """The prefix cache was cleared."""
    replica.keys.clear()
    return [Reset(number, replica.handle, time)]


def step(
    number: int, replica: Replica, output: Any, index: int, context: bytes, start: int, end: int, running: int,
    waiting: int, free: int,
) -> list[Record]:  # fmt: skip
    """`Scheduler.schedule` returned `output`."""
    scheduled: dict[str, int] = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    admitted = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    admitted |= {name: computed[name] for name in getattr(cached, "resumed_req_ids", ()) if name in computed}
    computed |= admitted
    prefilling = replica.prefilling
    prefilling.update(admitted)
    chunks: list[Chunk] = []
    prefill_tokens = 0
    for name in sorted(prefilling | replica.storing):  # in one order, whatever the process
        count = scheduled.get(name)
        if count is None:
            continue
        done = computed[name]
        state = replica.requests.get(name)
        planned = state.planned if state is not None else 0
        prefill = name in admitted or done < planned
        if prefill:
            prefill_tokens += count
        chunks.append(Chunk(name, done, done + count, prefill))
        if done + count >= planned:
            prefilling.discard(name)
    replica.storing.clear()
    finished = list(output.finished_req_ids)
    for name in finished:
        replica.requests.pop(name, None)
        prefilling.discard(name)
    owners, owner_groups = _block_owners(replica, output)
    record = StepRecord(
        sequence=number,
        replica=replica.handle,
        index=index,
        start=start,
        end=end,
        running=running,
        waiting=waiting,
        scheduled=len(scheduled),
        prefill_tokens=prefill_tokens,
        decode_tokens=output.total_num_scheduled_tokens - prefill_tokens,
        chunks=chunks,
        admitted=admitted,
        finished=finished,
        preempted=list(getattr(output, "preempted_req_ids", None) or ()),
        usage=1 - free / replica.usable_blocks,
        owners=owners,
        context=context,
        owner_groups=owner_groups,
    )
    return [record]


def _block_owners(replica: Replica, output: Any) -> tuple[dict[int, str], dict[int, int]]:
    """Return which requests, and which of their groups, were given the blocks whose keys were pushed out in this step.

    A block table has a list of blocks per group.
    """
    owners: dict[int, str] = {}
    groups: dict[int, int] = {}
    evicted = replica.evicted_blocks
    if not evicted:
        return owners, groups
    cached = output.scheduled_cached_reqs
    tables = [(name, ids) for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True) if ids]
    tables += [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
    # The first in the step has the last word: a later one that names the block too hit what the first had stored.
    for name, table in reversed(tables):
        for group, blocks in enumerate(table):
            if taken := [block for block in blocks if block in evicted]:
                owners.update(zip(taken, repeat(name)))
                groups.update(zip(taken, repeat(group)))
    evicted.clear()
    return owners, groups


def verified(
    number: int,
    replica: Replica,
    drafts: Mapping[str, Sequence[int]],
    rows: Mapping[str, int],
    counts: Sequence[int],
) -> list[Record]:
    """The drafted tokens of a step were verified: `counts` tokens came of each of `rows`, one of them not drafted."""
    for name, drafted in drafts.items():
        state = replica.requests.get(name)
        if state is not None and name in rows and (count := counts[rows[name]]):
            state.drafted += len(drafted)
            state.accepted += count - 1
    return []


def done(number: int, replica: Replica, index: int, start: int, end: int) -> list[Record]:
    """The output of step `index` was processed between `start` and `end`."""
    return [StepDone(number, replica.handle, index, start, end)]


def finished(number: int, replica: Replica, request: Any, time: int) -> list[Record]:
    """A request has ended, whatever ended it."""
    state = replica.requests.get(request.request_id)
    reason = request.get_finished_reason()
    record = Finished(
        sequence=number,
        replica=replica.handle,
        time=time,
        request=request.request_id,
        reason=str(reason) if reason is not None else "",
        output_tokens=request.num_output_tokens,
        preemptions=int(getattr(request, "num_preemptions", 0)),
        drafted=state.drafted if state is not None else 0,
        accepted=state.accepted if state is not None else 0,
    )
    return [record]


def executed(number: int, worker: Worker, index: int, context: bytes, start: int, end: int) -> list[Record]:
    """A worker ran a step."""
    return [Executed(number, worker.handle, index, context, start, end)]
