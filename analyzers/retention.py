"""What a prompt that is computed alone leaves in the cache: where its chunks end, and which states the mask keeps.

These are the rules of vLLM's retention mask (`reachable_block_mask` and `replay_boundaries`), of its chunks for Mamba
layers (`_mamba_block_aligned_split`) and of a prompt's partial tail (`_cache_partial_tail_block`), restated over
positions. All lengths in tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzers.finders import window_blocks
from analyzers.settings import Group, Settings
from otel_cache.semconv import names

REPLAY = (0, 30)
"""From this version on the mask keeps what a resend can use where speculation drops a block."""
OWN_DROP = (0, 30)
"""In this version chunks end where the flag of any group wants it, and a Mamba group registers by its own alone."""
FINE_MASK = (0, 29)
"""From this version on the mask works on the hit grid, which partial hits make finer than the scheduler block."""
BELOW_LAST = (0, 32)
"""From this version on the last state of a prompt lies where its resend can use it."""
BELOW_JUNCTION = (0, 33)
"""From this version on a group that drops a block keeps what a prompt can use that parts right behind a junction."""


@dataclass(frozen=True)
class Prefill:
    """A prompt of `tokens`, computed alone from `start` on; `junction` is the shared prefix that its lookup showed."""

    tokens: int
    start: int = 0
    junction: int = 0


def hashed(settings: Settings, tokens: int) -> int:
    """Return the last position that `tokens` of a prompt have a key for."""
    return max(0, tokens - settings.lookahead) // settings.hash_block * settings.hash_block


def registered(settings: Settings, group: Group, tokens: int) -> int:
    """Return the last block end that `group` registers of a prompt: groups with other blocks keep it from more."""
    top = tokens
    if len(settings.groups) > 1 and not settings.partial_hits:
        whole = tokens // settings.scheduler_block * settings.scheduler_block
        top = min(tokens, whole + group.block_size) if whole and group.flagged else whole
    return min(top, hashed(settings, tokens)) // group.block_size * group.block_size


def chunk_ends(settings: Settings, prefill: Prefill) -> list[int]:
    """Return where the chunks of a prompt end that is computed alone, ascending."""
    ends, at = [], prefill.start
    while at < prefill.tokens:
        at = _chunk_end(settings, prefill, at)
        ends.append(at)
    return ends


def _chunk_end(settings: Settings, prefill: Prefill, start: int) -> int:
    budget = settings.max_batched_tokens or prefill.tokens
    end = min(prefill.tokens, start + budget)
    if not any(group.kind == names.KIND_MAMBA for group in settings.groups):
        return end
    block = settings.split_block
    if end < prefill.tokens:
        aligned = end // block * block
        if aligned > start or block <= budget:
            end = aligned
    last, tail = _last_position(settings, prefill.tokens, block), _tail(settings, prefill.tokens)
    stops = [
        (start // block + 1) * block if start % block else 0,
        last,
        tail if last < tail < prefill.tokens else 0,
        _junction_stop(settings, prefill, start, block) if start < prefill.junction < end else 0,
    ]
    end = min((stop for stop in stops if start < stop < end), default=end)
    return end if end > start else min(prefill.tokens, start + budget)


def _junction_stop(settings: Settings, prefill: Prefill, start: int, block: int) -> int:
    if settings.shared_prefix_checkpoint:
        return prefill.junction
    return start + (prefill.junction - start) // block * block


def _drops(settings: Settings) -> bool:
    return any(group.flagged for group in settings.groups)


def _last_position(settings: Settings, tokens: int, block: int) -> int:
    """Return the last boundary of `block` whose state the scheduler lets a prompt leave."""
    if settings.version_tuple >= BELOW_LAST and not _drops(settings):
        tokens -= max(1, settings.lookahead)
    return max(0, tokens // block * block - (block if _drops(settings) else 0))


def _tail(settings: Settings, tokens: int) -> int:
    """Return the position inside a block at which a prompt's last chunk begins; 0 where hits end on blocks only."""
    if not settings.partial_hits:
        return 0
    unit = settings.hash_block
    if settings.version_tuple >= REPLAY:
        return _last_position(settings, tokens, unit)
    return tokens // unit * unit


def _tail_key(settings: Settings, group: Group, tokens: int) -> int:
    """Return the position at which a Mamba group registers a prompt's last state, if a chunk ends there."""
    if settings.version_tuple == OWN_DROP and settings.partial_hits and not group.flagged:
        return tokens // settings.hash_block * settings.hash_block
    return _tail(settings, tokens)


def kept(settings: Settings, group: Group, prefill: Prefill) -> list[int]:
    """Return the positions that the mask wants a state of `group` at, ascending: block ends up to the prompt's."""
    ends = range(group.block_size, registered(settings, group, prefill.tokens) + 1, group.block_size)
    if group.kind == names.KIND_MAMBA:
        return _kept_mamba(settings, prefill, ends)
    if group.kind == names.KIND_SLIDING_WINDOW:
        return list(_kept_window(settings, group, prefill, ends))
    return list(ends)


def _kept_mamba(settings: Settings, prefill: Prefill, ends: Sequence[int]) -> list[int]:
    if settings.retention == names.RETENTION_DENSE:
        return list(ends)
    interval, block = int(settings.retention), ends[0] if ends else 1
    reachable = {position // block * block for position in _reachable(settings, prefill)}
    return [end for end in ends if (interval and end % interval == 0) or end in reachable]


def _kept_window(settings: Settings, group: Group, prefill: Prefill, ends: Sequence[int]) -> Iterator[int]:
    block, grid = group.block_size, _mask_grid(settings)
    dense = settings.retention == names.RETENTION_DENSE
    segment = grid if dense else int(settings.retention)
    need, shift = window_blocks(group, group.flagged), int(group.flagged)
    if grid % block or (segment and need >= segment // block):
        yield from ends
        return
    tails: set[int] = set()
    for boundary in () if dense else _reachable(settings, prefill, group):
        last = boundary // block + shift
        tails.update(range(last - need, last))
    for index, end in enumerate(ends):
        within = segment and index >= shift and (index - shift) % (segment // block) >= segment // block - need
        if within or index in tails:
            yield end


def _mask_grid(settings: Settings) -> int:
    return settings.alignment if settings.version_tuple >= FINE_MASK else settings.scheduler_block


def _reachable(settings: Settings, prefill: Prefill, group: Group | None = None) -> list[int]:
    """Return the boundaries that are kept whatever the interval: of a resend, of a longer prompt, of a junction."""
    tokens, block, grid = prefill.tokens, settings.scheduler_block, _mask_grid(settings)
    if settings.version_tuple >= REPLAY and _drops(settings):
        found = [max(0, (tokens - 1) // block * block - block), max(0, tokens // block * block - block)]
    else:
        found = [tokens - 1]
    if prefill.junction:
        found.append(prefill.junction)
        if group and group.flagged and settings.version_tuple >= BELOW_JUNCTION:
            found.append(prefill.junction - group.block_size)
    return [position // grid * grid for position in found]


def left(settings: Settings, group: Group, prefill: Prefill) -> list[int]:
    """Return the positions at which `group` has a state once a prompt has been computed alone, ascending."""
    wanted = kept(settings, group, prefill)
    if group.kind == names.KIND_MAMBA:
        ends = chunk_ends(settings, prefill)
        # The state of a chunk that ends inside a block is taken for that of the block's end.
        made = {-(-end // group.block_size) * group.block_size for end in ends}
        found = [end for end in wanted if end in made]
        last_one_too = settings.version_tuple >= BELOW_LAST
        keys = {_tail_key(settings, group, prefill.tokens)}
        if settings.shared_prefix_checkpoint:
            keys.add(prefill.junction)
        inside = {key for key in keys.intersection(ends) if key % group.block_size or last_one_too}
        return sorted({*found, *inside})
    if group.dense and settings.partial_hits and group.fine_grained:
        unit, tokens = settings.hash_block, prefill.tokens
        whole = settings.version_tuple < BELOW_LAST or group.flagged
        tail = min(hashed(settings, tokens), (tokens if whole else tokens - 1) // unit * unit)
        return sorted({*wanted, tail} if tail % group.block_size else wanted)
    return wanted
