"""Two reports of the same work, before and after a change: which losses went, which came, and which moved.

Both are JSON reports of `otel-cache analyze`. Requests meet by their ids; of each, tokens that one class lost less and
another more are said to have moved. All figures in tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.model import CLASSES

HIT = "hit"
ORDER = {name: index for index, name in enumerate((HIT, *CLASSES))}
NAMES = ("process.pid", "service.instance.id", "vllm.replica.id", "vllm.kv_cache.fingerprint.key_id")
"""Attributes of a replica that name it or its life, and are no settings."""
Lost = Mapping[str, int]


@dataclass(frozen=True)
class Moved:
    """Tokens that were one class's before (`hit`: served) and another's after."""

    before: str
    after: str
    tokens: int
    requests: int


@dataclass(frozen=True)
class Changed:
    """A request whose tokens changed most: per class what was lost before and after."""

    request_id: str
    prompt_tokens: int
    hit_before: int
    hit_after: int
    lost_before: Lost
    lost_after: Lost


@dataclass(frozen=True)
class Comparison:
    """What became of the losses.

    Attributes:
        prompt, hit: tokens before and after, over all lookups.
        lost: per class, tokens before and after, over all lookups.
        moved: over the requests that both have with the same prompt; from `hit` to a class: it came, from a class to
            `hit`: it went.
        matched: requests that both have; `only_before` and `only_after`: those that one has.
        changed: the requests that changed most, at most as many as asked for.
        rules: findings per rule, tokens before and after: lost, or, of a rule on no lost class, what its fix gives
            back, 0 where that is not known; None where a side has none.
        settings: what differs in the replicas' settings: values before and after, without repetition.

    """

    prompt: tuple[int, int]
    hit: tuple[int, int]
    lost: Mapping[str, tuple[int, int]]
    moved: Sequence[Moved]
    matched: int
    only_before: Sequence[str]
    only_after: Sequence[str]
    changed: Sequence[Changed]
    rules: Mapping[str, tuple[int | None, int | None]]
    settings: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]

    @property
    def went(self) -> dict[str, int]:
        """Tokens per class that are served now."""
        return _sum((move.before, move.tokens) for move in self.moved if move.after == HIT)

    @property
    def came(self) -> dict[str, int]:
        """Tokens per class that were served before."""
        return _sum((move.after, move.tokens) for move in self.moved if move.before == HIT)

    @property
    def others(self) -> list[Moved]:
        """What moved from class to class."""
        return [move for move in self.moved if HIT not in (move.before, move.after)]


def compare(before: Mapping[str, Any], after: Mapping[str, Any], most: int = 10) -> Comparison:
    """Compare two JSON reports; list at most `most` requests."""
    one, two = _by_id(before), _by_id(after)
    common = [name for name in one if name in two and one[name]["prompt_tokens"] == two[name]["prompt_tokens"]]
    moved: Counter[tuple[str, str]] = Counter()
    requests: Counter[tuple[str, str]] = Counter()
    changed = []
    for name in common:
        moves = _moves(_parts(one[name]), _parts(two[name]))
        moved.update(moves)
        requests.update(dict.fromkeys(moves, 1))
        if moves:
            changed.append((sum(moves.values()), name))
    changed.sort(key=lambda each: -each[0])
    classes = sorted({*before["tokens"]["lost"], *after["tokens"]["lost"]}, key=_order)
    return Comparison(
        prompt=(before["tokens"]["prompt"], after["tokens"]["prompt"]),
        hit=(before["tokens"]["hit"], after["tokens"]["hit"]),
        lost={c: (before["tokens"]["lost"].get(c, 0), after["tokens"]["lost"].get(c, 0)) for c in classes},
        moved=[
            Moved(*pair, tokens, requests[pair])
            for pair, tokens in sorted(moved.items(), key=lambda each: (-each[1], each[0]))
        ],
        matched=len(common),
        only_before=[name for name in one if name not in common],
        only_after=[name for name in two if name not in common],
        changed=[_changed(one[name], two[name]) for _, name in changed[:most]],
        rules=_rules(before, after),
        settings=_settings(before, after),
    )


def _by_id(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the lookups by request id; one that comes again has its number behind it."""
    found: dict[str, Mapping[str, Any]] = {}
    seen: Counter[str] = Counter()
    for lookup in report["lookups"]:
        name = lookup["request_id"]
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} #{seen[name]}"] = lookup
    return found


def _parts(lookup: Mapping[str, Any]) -> dict[str, int]:
    return {HIT: lookup["hit_tokens"], **lookup["lost"]}


def _moves(before: Lost, after: Lost) -> Counter[tuple[str, str]]:
    """Return how many tokens went from where to where: what is less in one place is more in another."""
    change = {name: after.get(name, 0) - before.get(name, 0) for name in {*before, *after}}
    names = sorted(change, key=_order)
    less = {name: -change[name] for name in names if change[name] < 0}
    found: Counter[tuple[str, str]] = Counter()
    for name in names:
        more = max(0, change[name])
        for source in less:
            taken = min(more, less[source])
            more -= taken
            less[source] -= taken
            if taken:
                found[source, name] += taken
    return found


def _order(name: str) -> tuple[int, str]:
    return ORDER.get(name, len(ORDER)), name


def _changed(one: Mapping[str, Any], two: Mapping[str, Any]) -> Changed:
    return Changed(
        one["request_id"], one["prompt_tokens"], one["hit_tokens"], two["hit_tokens"], one["lost"], two["lost"]
    )


def _rules(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    sides = [_sum((each["rule"], _figure(each)) for each in report["findings"]) for report in (before, after)]
    return {rule: (sides[0].get(rule), sides[1].get(rule)) for rule in sorted({*sides[0], *sides[1]})}


def _figure(finding: Mapping[str, Any]) -> int:
    """Return what a finding lost; of one that is about no lost class what its fix gives back, if that is known."""
    return int(finding["tokens_lost"] or finding.get("tokens_regained") or 0)


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    one, two = _values(before), _values(after)
    return {
        name: (one.get(name, []), two.get(name, []))
        for name in sorted({*one, *two})
        if one.get(name) != two.get(name) and name not in NAMES
    }


def _values(report: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each attribute over the replicas, each once, in the order of the replicas."""
    found: dict[str, list[Any]] = {}
    for replica in report["replicas"]:
        for name, value in replica["settings"].items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return found


def _sum(pairs: Iterator[tuple[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, tokens in pairs:
        found[name] += tokens
    return dict(sorted(found.items(), key=lambda each: _order(each[0])))
