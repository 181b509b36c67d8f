"""Fixes: the flag or the change that gives a lost class of tokens back, in this version of vLLM and this layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from analyzers import model, routing
from analyzers.changes import Change, Fix
from analyzers.intervals import Pool, Priced, best_of, keeping, priced, sparser, states_left, weighed
from analyzers.ladder import last_boundary
from analyzers.model import GroupState, LookupResult
from analyzers.retention import Prefill, chunk_ends
from analyzers.settings import Settings
from analyzers.wording import counted, group_names, number
from otel_cache.semconv import names

RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
RETENTION_FLAG = "--prefix-cache-retention-interval"
BUDGET_FLAG = "--max-num-batched-tokens"
CHECKPOINT_FLAG = "--enable-mamba-shared-prefix-checkpoint"
CHECKPOINT = (0, 31)
"""From this version on there is that flag."""
MEMORY = "--gpu-memory-utilization, --kv-cache-memory-bytes"
CURED = (0, 30)
"""From this version on the mask keeps the boundaries that a resend of the same prompt can use."""


SWEEP = "otel-cache lab sweep CAPTURE --engine same"


@dataclass(frozen=True)
class Case:
    """The losses of one class under one configuration.

    Attributes:
        rows: the lookups that lost; `worst` lost most.
        prompts: by life, the lengths of prompts that share no prefix.
        pools: by life.

    """

    cls: str
    settings: Settings
    rows: Sequence[LookupResult]
    worst: LookupResult
    prompts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    pools: Mapping[int, Pool] = field(default_factory=dict)

    @cached_property
    def tokens(self) -> int:
        """All that was lost."""
        return sum(abs(row.lost[self.cls]) for row in self.rows)

    @property
    def boundaries(self) -> list[int]:
        """The boundaries that hits needed, as far as a retention interval can keep them, the worst's among them."""
        block = self.settings.scheduler_block
        return sorted({row.needed_boundary for row in self.rows if row.needed_boundary % block == 0} - {0})


def fix_cut(case: Case) -> Fix:
    """Say how to end that what speculation drops is rounded up to the grid."""
    settings = case.settings
    changes = []
    if settings.version_tuple < (0, 33):
        says = "upgrade to vLLM 0.33, which looks one block further before it drops"
        changes.append(Change((("vllm", "0.33"),), says))
    if settings.version_tuple >= (0, 30):
        says = 'set "disable_eagle_block_drop": true in --speculative-config, at some cost in accepted drafts'
        changes.append(Change((("disable_eagle_block_drop", "true"),), says))
    blocks = f"choose blocks whose least common multiple is below today's {number(settings.scheduler_block)}"
    return Fix("; or ".join([*(each.says for each in changes), blocks]), changes[0] if changes else None)


def _sentences(*parts: str) -> str:
    """Return the parts of a fix that are not empty, each a sentence of its own.

    The first begins as it is and the last has no full stop: who shows a fix begins and ends it as its place asks.
    """
    first, *others = filter(None, parts)
    return ". ".join([first, *(f"{each[0].upper()}{each[1:]}" for each in others)])


def retained(settings: Settings, interval: int) -> Change:
    """Return the change of the retention interval (tokens) in this version of vLLM."""
    return Change((("prefix_cache_retention_interval", str(interval)),), retention_fix(settings, interval))


def retention_fix(settings: Settings, interval: int) -> str:
    """Say how to set the retention interval (tokens) in this version of vLLM."""
    flag = f"{RETENTION_FLAG} {interval}"
    if settings.version_tuple < (0, 29):
        return (
            f"set the environment variable {RETENTION_VARIABLE}={interval} (vLLM {settings.version}; "
            f"from 0.29 on it is the flag {flag})"
        )
    return f"start vLLM with {flag}"


def fix_shifted(case: Case) -> Fix:
    """Say how to keep the states that the mask refused, at which price, and whether the pool has room for them."""
    settings, worst = case.settings, case.worst
    at = worst.needed_boundary
    reasons = worst.reason.split(",")
    if at % settings.scheduler_block:
        says = (
            f"no retention interval keeps a state at {number(at)}, which is no multiple of the scheduler block of "
            f"{number(settings.scheduler_block)}: let shared prefixes end on such a multiple, or use smaller blocks"
        )
        if "held_prefix" in reasons and without_loss(settings, worst) != at:
            says = _sentences("first end the loss that moved the boundary (see the finding on it)", says)
        return Fix(says)
    tokens = worst.prompt_tokens
    choices, best = _intervals(case)
    today = states_left(settings, settings.retention, tokens)
    change = retained(settings, best.interval)
    kept = _ended(case, best)
    upgrade = ""
    if settings.version_tuple < CURED and "speculation" in reasons:
        upgrade = "or upgrade: from vLLM 0.30 on the mask keeps the boundary that an identical resend can use"
    elif settings.version_tuple < CURED and "aligned_prompt" in reasons:
        upgrade = "or upgrade: from vLLM 0.30 on the boundary below a block-aligned prompt's end is kept"
    fix = _sentences(
        f"{change.says}: a state is then kept where a chunk ends on a multiple of {number(best.interval)}, as it does "
        f"at {number(at)}",
        f"a prompt of {counted(tokens)} that is computed alone then leaves {_blocks(best.states)} in "
        f"{group_names(_sparse(settings, worst))}, today {number(today)}",
        *_others(choices, best, at),
        *_room(choices, best),
        _gives_back(kept) if kept < case.tokens else "",
        upgrade,
    )
    return Fix(fix, change, kept if kept < case.tokens else None)


def without_loss(settings: Settings, row: LookupResult) -> int:
    """Return the boundary that a lookup had needed, had its replica held all that the first loss took of its prefix.

    What speculation dropped of the shorter prefix it drops of the whole one too.
    """
    needed = row.needed_boundary
    steps = [(upper, lower) for cls, upper, lower in row.ladder if cls in model.HELD_LESS and lower >= needed]
    if not steps:
        return needed
    whole, left = steps[0][0], steps[-1][1]
    return (whole - (left - needed)) // settings.alignment * settings.alignment


def _intervals(case: Case) -> tuple[list[Priced], Priced]:
    """Return intervals that keep what hits needed, and the best of them.

    They keep all boundaries that an interval can keep; where the pool has no room for any of those, the worst lookup's.
    """
    tokens = case.worst.prompt_tokens
    choices: list[Priced] = []
    for boundaries in (case.boundaries, [case.worst.needed_boundary]):
        intervals = weighed(keeping(case.settings, boundaries))
        choices = priced(case.settings, intervals, tokens, case.prompts, case.pools)
        if best_of(choices).fits:
            break
    return choices, best_of(choices)


def _ended(case: Case, best: Priced) -> int:
    """Return how many of the tokens were lost for a state that the interval keeps."""
    return sum(row.lost[case.cls] for row in case.rows if row.needed_boundary % best.interval == 0)


def fix_key(case: Case) -> Fix:
    """Say how requests come to share what was cached under another key."""
    says = "use the same LoRA adapter and the same cache salt where sharing is allowed"
    return Fix(says, regained=sum(_under_one_key(case.settings, row) for row in case.rows))


def _under_one_key(settings: Settings, row: LookupResult) -> int:
    """Return how much further a hit could have ended, had the tokens been cached under the key of the lookup."""
    limit = row.prompt_tokens - 1
    steps = [(upper, lower) for cls, upper, lower in row.ladder if cls == model.KEY_DIFFERENCE]
    return sum(last_boundary(settings, upper, limit) - last_boundary(settings, lower, limit) for upper, lower in steps)


def _sparse(settings: Settings, row: LookupResult) -> list[GroupState]:
    sparse = {group.index for group in settings.sparse_groups}
    return [group for group in row.groups if group.group in sparse]


def _blocks(count: int) -> str:
    return f"{number(count)} block{'' if count == 1 else 's'}"


def _others(choices: Sequence[Priced], best: Priced, at: int) -> list[str]:
    """Name the other intervals that keep as much, with the states that each leaves: none, or two sentences."""
    others = [f"{number(each.interval)} ({number(each.states)})" for each in choices if each is not best]
    if not others:
        return []
    return [
        f"other intervals keep {number(at)} too, with as many blocks as stand behind them: {', '.join(others)}",
        f"compare them on the capture's own requests with `{SWEEP}`",
    ]


def _room(choices: Sequence[Priced], best: Priced) -> list[str]:
    """Say which of the intervals, if any, may not fit the pool: none, or two sentences."""
    dense = choices[0]
    if dense.fits or dense.pool is None:
        return []
    pool = dense.pool
    has = f"evicts already ({_blocks(pool.evicted)})" if pool.evicted else f"had room for about {number(pool.room)}"
    says = f"an interval of {number(dense.interval)} would keep up to {_blocks(dense.added)} more, and the pool of "
    says += f"{number(pool.blocks)} {has}"
    if best.fits:
        return [says, "what it keeps may push out what is needed"]
    least = "" if best is dense else f", and {number(best.interval)} up to {number(best.added)}"
    return [
        says + least,
        f"what is kept may be evicted again before it is used, so give the KV cache more memory ({MEMORY}) as well",
    ]


def has_checkpoint_flag(settings: Settings) -> bool:
    """Whether the flag that keeps a state inside a block where a shared prefix ends is there, and has an effect."""
    drafts = any(group.flagged for group in settings.groups) or settings.lookahead > 0
    return settings.version_tuple >= CHECKPOINT and settings.partial_hits and drafts


def _checkpoint_fix(case: Case, at: int) -> Fix:
    if case.settings.shared_prefix_checkpoint:
        says = (
            f"none for the first prompt that shares this prefix with another: {CHECKPOINT_FLAG} is on, so that its "
            f"chunk ends at {number(at)} and the next one hits there"
        )
        return Fix(says, regained=0)
    change = Change((("enable_mamba_shared_prefix_checkpoint", "true"),), f"start vLLM with {CHECKPOINT_FLAG}")
    says = (
        f"{change.says}: the first prompt that is seen to share this prefix then ends a chunk at {number(at)}, inside "
        "a block, and the next ones hit there"
    )
    return Fix(says, change, _after_first(case))


def _after_first(case: Case) -> int:
    """Return the tokens that prompts lost inside a block after the first one that was seen to share the prefix."""
    seen: set[tuple[int, str, int]] = set()
    tokens = 0
    for row in sorted(case.rows, key=lambda each: each.time):
        key = (row.life, row.family, row.needed_boundary)
        if key in seen and row.needed_boundary % case.settings.scheduler_block:
            tokens += row.lost[case.cls]
        seen.add(key)
    return tokens


def fix_not_materialized(case: Case) -> Fix:
    """Say how to make a chunk end where the worst lookup needed a state, and of how many tokens that is the end."""
    settings, worst = case.settings, case.worst
    at = worst.needed_boundary
    lacking = [group for group in worst.groups if group.group in worst.limiting_groups]
    if not at or not lacking:
        return Fix("look at why the earlier request ended before its prompt was computed (aborted or preempted)")
    if at % settings.scheduler_block:
        if has_checkpoint_flag(settings):
            return _checkpoint_fix(case, at)
        says = _sentences(
            f"no chunk can be made to end at {number(at)}: chunks end on multiples of the scheduler block of "
            f"{number(settings.scheduler_block)}",
            "let shared prefixes end on such a multiple",
        )
        return Fix(says)
    if _ends_at(settings, at):
        says = _sentences(
            f"a prompt that is computed alone ends a chunk at {number(at)} with today's {BUDGET_FLAG} "
            f"{settings.max_batched_tokens} already",
            "this one began elsewhere or shared its steps with others",
        )
        return Fix(says, regained=0)
    budget = chunk_budget(settings, at)
    if budget is None:
        says = _sentences(f"no {BUDGET_FLAG} makes a chunk of such a prompt end at {number(at)}", _cut(settings))
        return Fix(says, regained=0)
    change = Change((("max_num_batched_tokens", str(budget)),), f"set {BUDGET_FLAG} {budget}")
    kept = "the mask keeps the state there"
    if settings.retention != names.RETENTION_DENSE and not _mask_wants(lacking, at):
        keep = retained(settings, settings.scheduler_block)
        kept = f"for the state to be kept there as well, {keep.says}"
        change = Change((*change.settings, *keep.settings), f"{change.says}, and {keep.says}")
    there = max(0, sum(_with_chunks(row, budget) for row in case.rows))
    fix = _sentences(
        f"make a chunk of a prompt that is computed alone end at {number(at)}: {BUDGET_FLAG} {budget} (for all "
        "requests: smaller chunks make long prefills slower)",
        _cut(settings),
        kept,
        _gives_back(there) if there != case.tokens else "",
    )
    return Fix(fix, change, there if there != case.tokens else None)


def _gives_back(tokens: int) -> str:
    return f"this gives {number(tokens)} of the lost tokens back: the other lookups needed states at other boundaries"


def _with_chunks(row: LookupResult, budget: int) -> int:
    """Return the tokens that a lookup hits more where chunks end on multiples of `budget`; below 0: it hits less."""
    lost, needed = row.lost[model.NOT_MATERIALIZED], row.needed_boundary
    return needed // budget * budget - (needed - lost)


def _mask_wants(lacking: Sequence[GroupState], boundary: int) -> bool:
    return all(boundary in group.wanted for group in lacking)


def _cut(settings: Settings) -> str:
    smallest = min(group.block_size for group in settings.groups)
    if settings.split_block == smallest:
        return ""
    return (
        f"this server ends chunks on multiples of {number(settings.split_block)}, as vLLM does on CPUs, and not on "
        f"those of its groups' {number(smallest)}"
    )


def chunk_budget(settings: Settings, boundary: int) -> int | None:
    """Return the largest batch-token limit, not above today's, with which a chunk of a prompt ends at `boundary`.

    That is of a prompt that is computed alone and goes on beyond it. None: there is none.
    """
    today = settings.max_batched_tokens or boundary
    sizes = (boundary // n for n in range(1, boundary // settings.split_block + 1) if boundary % n == 0)
    limited = (replace(settings, max_batched_tokens=size) for size in sizes if size <= today)
    return next((each.max_batched_tokens for each in limited if _ends_at(each, boundary)), None)


def _ends_at(settings: Settings, boundary: int) -> bool:
    # So long that where it ends is not what ends the chunk.
    goes_on = Prefill(2 * (boundary + settings.max_batched_tokens + settings.scheduler_block))
    return boundary in chunk_ends(settings, goes_on)


def fix_evicted(case: Case) -> Fix:
    """Say how to keep what was evicted."""
    fix = (
        f"give the KV cache more memory ({MEMORY}), or send requests that share a prefix closer together or to fewer "
        "replicas"
    )
    change = Change((("kv_cache_memory", ""),), fix)
    worst, at = case.worst, case.worst.needed_boundary
    if case.cls != model.CHECKPOINT_EVICTED or not any(group.state == "evicted" for group in worst.groups):
        return Fix(fix, change)
    found = (
        sparser(case.settings, case.boundaries, worst.prompt_tokens, case.prompts) if at in case.boundaries else None
    )
    if found is None:
        return Fix(fix, change)
    interval, states, today = found
    says = _sentences(
        fix,
        f"or keep fewer states: {retention_fix(case.settings, interval)}",
        f"at {number(at)} one is still kept, and a prompt of {counted(worst.prompt_tokens)} that is computed alone "
        f"leaves {_blocks(states)} of them, today {number(today)}",
        f"compare intervals with `{SWEEP}`",
    )
    return Fix(says, change)


def fix_routing(case: Case) -> Fix:
    """Say what sending requests that share a prefix to one replica gives back of what others held."""
    return routing.fix(case.rows, case.worst)


def fix_alignment(case: Case) -> Fix:
    """Say how to make a hit end closer to where the shared prefix ends."""
    settings, worst = case.settings, case.worst
    finer = "smaller blocks"
    if finer_unit_helps(settings):
        finer = "a smaller --prefix-match-unit, or smaller blocks,"
    if "below_minimum" in worst.reason:
        return Fix(
            f"here the shortest hit has {number(settings.minimum)} tokens, in a prompt that goes on beyond them: "
            f"{finer} would lower that"
        )
    return Fix(
        f"hits end on multiples of {number(settings.alignment)} tokens: {finer} would bring the boundary closer to "
        "where the shared prefix ends"
    )


def finer_unit_helps(settings: Settings) -> bool:
    """Whether a smaller `--prefix-match-unit` can let hits end on a finer grid than today's.

    vLLM lets hits end inside the blocks of a hybrid model alone, and only where the groups whose lookup is by whole
    blocks have blocks as small as the unit, which divides the blocks of all groups.
    """
    whole = {group.block_size for group in settings.groups if not group.fine_grained}
    if len(settings.groups) < 2 or len(whole) > 1:
        return False
    unit = min(whole, default=1)
    inside = any(group.kind == names.KIND_MAMBA and group.block_size > unit for group in settings.groups)
    return inside and unit < settings.alignment and all(group.block_size % unit == 0 for group in settings.groups)
