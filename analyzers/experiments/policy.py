"""The stop rule as a file: what has to hold before a change may go on.

    first_repeat: {shapes: [identical, extension], slack_tokens: 0}
    outputs_equal: true
    occupancy: {at_most: 0.9}
    evictions: {at_most_blocks: 1000, at_most_share: 0.1}
    warm_conversations: {at_least: 2, two_longest_tokens: 20000}
    findings: {none_of: [shifted-boundary]}
    settings: {vllm.version: 0.28.0, vllm.kv_cache.retention_interval: "1600"}
    recorded: [vllm.commit, vllm.kv_cache.groups.kind]

Only the rules that stand in the file are judged.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from analyzers.vllm_lab.keys import check_keys, wrong_value
from analyzers.vllm_lab.scenario import load_yaml
from otel_cache.errors import ScenarioError, UsageError
from otel_cache.semconv import names

Shape = Literal["identical", "extension"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

RECORDED = (
    names.VLLM_VERSION, names.VLLM_COMMIT, names.GROUPS_KIND, names.GROUPS_BLOCK_SIZE, names.SCHEDULER_BLOCK_SIZE,
    names.HASH_BLOCK_SIZE, names.RETENTION_INTERVAL, names.SPECULATIVE_TOKENS, names.MAX_BATCHED_TOKENS,
)  # fmt: skip
"""Commit, layout, block, unit, retention and batch limit; the method is `SPECULATIVE_METHOD`, where there is one."""


class FirstRepeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first valid repeat of a prompt hits the boundary that its settings allow, less `slack_tokens`."""

    shapes: tuple[Shape, ...] = ("identical", "extension")
    slack_tokens: Count = 0


class Occupancy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of each pool that was cached at once, at the most."""

    at_most: Share


class Evictions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks that left the caches: how many, and as a share of those that were stored."""

    at_most_blocks: Count | None = None
    at_most_share: Share | None = None


class Warm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations that stayed warm at once on a replica, and the tokens of the two longest that did together."""

    at_least: Count = 0
    two_longest_tokens: Count = 0


class Findings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of which there may be no finding."""

    none_of: tuple[str, ...]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules; None: not judged."""

    first_repeat: FirstRepeat | None = None
    outputs_equal: bool | None = None
    occupancy: Occupancy | None = None
    evictions: Evictions | None = None
    warm_conversations: Warm | None = None
    findings: Findings | None = None
    settings: dict[str, Any] | None = None
    recorded: tuple[str, ...] | bool | None = None


def load_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        UsageError: it is not there, is not YAML, names no rule, or says something impossible; names the place.

    """
    try:
        data = load_yaml(path, "a policy")
        if not isinstance(data, dict) or not data:
            raise ScenarioError(
                f"{path}: a policy is a mapping with rules, such as first_repeat; see docs/experiments.md"
            )
        check_keys(data, Policy, str(path))
    except ScenarioError as error:
        raise UsageError(str(error)) from None
    data = {key: ({} if value is None and key in ("first_repeat",) else value) for key, value in data.items()}
    try:
        policy = msgspec.convert(data, Policy)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {wrong_value(error, Policy)}") from error
    _check_rules(policy, path)
    for place, needed in _without_effect(policy):
        raise UsageError(f"{path}: {place}: nothing is asked for, so nothing would be judged; give {needed}")
    if policy == Policy():
        raise UsageError(f"{path}: no rule is on, so there is nothing to judge")
    return policy


def _check_rules(policy: Policy, path: Path) -> None:
    from analyzers.rules import RULES, no_rule

    for rule in policy.findings.none_of if policy.findings else ():
        if rule not in RULES:
            raise UsageError(f"{path}: findings.none_of: {no_rule(rule)}")
    for name in policy.settings or ():
        _check_name(name, f"{path}: settings")
    for name in policy.recorded if isinstance(policy.recorded, tuple) else ():
        _check_name(name, f"{path}: recorded")


def _check_name(name: str, place: str) -> None:
    """Refuse a name of vLLM's that nothing has; other attributes of a resource are whatever its user gave it."""
    known = [value for value in vars(names).values() if isinstance(value, str) and value.startswith("vllm.")]
    if name.startswith("vllm.") and name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "docs/signals.md has all of them"
        raise UsageError(f"{place}: no attribute {name!r}; {hint}")


def _without_effect(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield rules that hold whatever the capture, and what is to be given to them."""
    if policy.first_repeat is not None and not policy.first_repeat.shapes:
        yield "first_repeat.shapes", " or ".join(get_args(Shape))
    if policy.evictions == Evictions():
        yield "evictions", "at_most_blocks or at_most_share"
    if policy.warm_conversations == Warm():
        yield "warm_conversations", "at_least or two_longest_tokens"
    if policy.findings is not None and not policy.findings.none_of:
        yield "findings.none_of", "names of rules"
    if policy.settings == {}:
        yield "settings", "attributes and their values"
    if policy.recorded == ():
        yield "recorded", "names of attributes, or true"
