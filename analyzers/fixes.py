"""Fixes: the flag or the change that gives a lost class of tokens back, in this version of vLLM and this layout."""

from collections.abc import Sequence

from analyzers import model
from analyzers.finders import required_positions
from analyzers.model import GroupState, LookupResult
from analyzers.settings import Group, Settings
from analyzers.wording import number
from otel_cache.semconv import names

RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
RETENTION_FLAG = "--prefix-cache-retention-interval"
BUDGET_FLAG = "--max-num-batched-tokens"
CURED = (0, 30)
"""From this version on the mask keeps the boundaries that a resend of the same prompt can use."""


def states_per_boundary(group: Group) -> int:
    """Return how many blocks a group keeps for one boundary."""
    far = 2 * (group.window // group.block_size + 1) * group.block_size
    return len(required_positions(group, far)) if group.window else 1


def valid_intervals(settings: Settings, boundary: int) -> list[int]:
    """Return the retention intervals (tokens) that keep a state at `boundary`, ascending: all that vLLM accepts."""
    block = settings.scheduler_block
    return [size for size in range(block, boundary + 1, block) if boundary % size == 0]


def price_of(settings: Settings, groups: Sequence[int], interval: int, tokens: int) -> int:
    """Return how many blocks the sparse `groups` keep of a prompt of `tokens` with this retention interval."""
    return sum(tokens // interval * states_per_boundary(settings.groups[group]) for group in groups)


def fix_cut(settings: Settings, worst: LookupResult) -> str:
    """Say how to end that what speculation drops is rounded up to the grid."""
    fixes = []
    if settings.version_tuple < (0, 33):
        fixes.append("upgrade to vLLM 0.33, which looks one block further before it drops")
    if settings.version_tuple >= (0, 30):
        fixes.append('set "disable_eagle_block_drop": true in --speculative-config, at some cost in accepted drafts')
    fixes.append(f"choose blocks whose least common multiple is below today's {number(settings.scheduler_block)}")
    return "; or ".join(fixes)


def retention_fix(settings: Settings) -> str:
    """Say how to set the retention interval to the scheduler block in this version of vLLM."""
    block = settings.scheduler_block
    flag = f"{RETENTION_FLAG} {block}"
    if settings.version_tuple < (0, 29):
        return (
            f"set the environment variable {RETENTION_VARIABLE}={block} (vLLM {settings.version}; "
            f"from 0.29 on it is the flag {flag})"
        )
    return f"start vLLM with {flag}"


def fix_shifted(settings: Settings, worst: LookupResult) -> str:
    """Say how to keep the state that the mask refused."""
    at = worst.needed_boundary
    reasons = worst.reason.split(",")
    if at % settings.scheduler_block:
        return (
            f"no retention interval keeps a state at {number(at)}, which is no multiple of the scheduler block of "
            f"{number(settings.scheduler_block)}: let shared prefixes end on such a multiple, or use smaller blocks"
        )
    price = max((states_per_boundary(settings.groups[group]) for group in worst.limiting_groups), default=1)
    fix = (
        f"{retention_fix(settings)}: a state is then kept every {number(settings.scheduler_block)} tokens, at "
        f"{number(at)} too, at the price of {price} block{'s' if price > 1 else ''} per group and boundary"
    )
    others = [each for each in valid_intervals(settings, at)[1:] if each < at] + [at]
    if len(others) > 1 or others[0] != settings.scheduler_block:
        tokens = worst.prompt_tokens
        priced = [
            f"{number(each)} ({number(price_of(settings, worst.limiting_groups, each, tokens))})"
            for each in [settings.scheduler_block, *others]
        ]
        shown = priced if len(priced) <= 5 else [*priced[:4], "...", priced[-1]]
        fix += (
            f"; intervals that keep this one, with the blocks that a prompt of {number(tokens)} tokens costs: "
            f"{', '.join(shown)}"
        )
    if "held_prefix" in reasons:
        return f"first end the loss that moved the boundary (see the finding on it); to keep the state, {fix}"
    if settings.version_tuple < CURED and "speculation" in reasons:
        fix += "; or upgrade: from vLLM 0.30 on the mask keeps the boundary that an identical resend can use"
    elif settings.version_tuple < CURED and "aligned_prompt" in reasons:
        fix += "; or upgrade: from vLLM 0.30 on the boundary below a block-aligned prompt's end is kept"
    return fix


def fix_not_materialized(settings: Settings, worst: LookupResult, rows: Sequence[LookupResult] = ()) -> str:
    """Say how to make a chunk end where the worst of `rows` needed a state, and of how many tokens that is the end."""
    at = worst.needed_boundary
    lacking = [group for group in worst.groups if group.group in worst.limiting_groups]
    if not at or not lacking:
        return "look at why the earlier request ended before its prompt was computed (aborted or preempted)"
    if at % settings.scheduler_block:
        return (
            f"no chunk can be made to end at {number(at)}: chunks end on multiples of the scheduler block of "
            f"{number(settings.scheduler_block)}; let shared prefixes end on such a multiple"
        )
    budget = chunk_budget(settings, at)
    if budget is None:
        return (
            f"a prompt that is computed alone ends a chunk at {number(at)} with today's {BUDGET_FLAG} "
            f"{settings.max_batched_tokens} already; this one began elsewhere or shared its steps with others"
        )
    fix = (
        f"make a chunk of a prompt that is computed alone end at {number(at)}: {BUDGET_FLAG} {budget} (for all "
        "requests: smaller chunks make long prefills slower)"
    )
    if settings.retention == names.RETENTION_DENSE or _mask_wants(lacking, at):
        fix += "; the mask keeps the state there"
    else:
        fix += f", and keep the state there: {retention_fix(settings)}"
    lost = [(row.lost[model.NOT_MATERIALIZED], row.needed_boundary) for row in rows]
    there = sum(tokens for tokens, boundary in lost if boundary % budget == 0)
    if there < sum(tokens for tokens, _ in lost):
        fix += f"; that ends {number(there)} of these tokens, the other lookups needed states at other boundaries"
    return fix


def _mask_wants(lacking: Sequence[GroupState], boundary: int) -> bool:
    return all(boundary in group.wanted for group in lacking)


def chunk_budget(settings: Settings, boundary: int) -> int | None:
    """Return the largest batch-token limit, not above today's, with which chunks from 0 on end at `boundary`.

    Chunks end on multiples of the scheduler block. None: today's limit is the answer already.
    """
    block, today = settings.scheduler_block, settings.max_batched_tokens
    sizes = (boundary // n for n in range(1, boundary // block + 1) if boundary % n == 0)
    found = next((size for size in sizes if size % block == 0 and (not today or size <= today)), block)
    return None if today and found == today // block * block else found


def fix_evicted(settings: Settings, worst: LookupResult) -> str:
    """Say how to keep what was evicted."""
    return (
        "give the KV cache more memory (--gpu-memory-utilization, --kv-cache-memory-bytes), or send requests that "
        "share a prefix closer together or to fewer replicas"
    )


def fix_routing(rows: Sequence[LookupResult]) -> str:
    """Say what sending requests that share a prefix to one replica gives back of what others held."""
    fix = "route requests that share a prefix to the same replica"
    held = sum(row.lost[model.HELD_ELSEWHERE] for row in rows)
    there = sum(min(row.lost[model.HELD_ELSEWHERE], row.regret_tokens) for row in rows)
    if there == held:
        return fix
    if not there:
        return f"{fix}, and end what kept them from a hit there too: no other replica would have hit more"
    return f"{fix}: of these tokens another one would have hit {number(there)}"


def fix_alignment(settings: Settings, worst: LookupResult) -> str:
    """Say how to make a hit end closer to where the shared prefix ends."""
    finer = "smaller blocks"
    if finer_unit_helps(settings):
        finer = "a smaller --prefix-match-unit, or smaller blocks,"
    if "below_minimum" in worst.reason:
        return (
            f"here the shortest hit has {number(settings.minimum)} tokens, in a prompt that goes on beyond them: "
            f"{finer} would lower that"
        )
    return (
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
