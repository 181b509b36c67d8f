"""Findings on routing: what another replica would have hit, what a router saw, and whom it can choose between."""

from collections import Counter
from collections.abc import Sequence

from analyzers import model
from analyzers.changes import Change, Fix
from analyzers.model import Fact, Finding, Fleet, LookupResult, Routed
from analyzers.routers import best_of
from analyzers.wording import counted, group_names, lookups, number

RULES = ("routing", "router", "router-endpoint")
ROUTER_SHARE = 0.1
"""A router that is off by less than this share of a prompt counts in other blocks, and is right."""


def findings(fleet: Fleet | None, results: Sequence[LookupResult], routed: Sequence[Routed]) -> list[Finding]:
    """Return what there is to say of where requests were sent."""
    return [*_routing(fleet, results), *_router(results), *_endpoints(results, routed)]


def _routing(fleet: Fleet | None, results: Sequence[LookupResult]) -> list[Finding]:
    if fleet is None or not fleet.regret_tokens:
        return []
    regrets = [result.regret_tokens for result in results]
    worst = regrets.index(max(regrets))
    lookup = results[worst]
    logic: Counter[str] = Counter()
    by_class = regret_by_class(results)
    for result, regret in zip(results, regrets, strict=True):
        if result.routing_logic:
            logic[result.routing_logic] += regret
    return [
        Finding(
            rule="routing",
            summary=f"another replica would have hit more: {counted(fleet.regret_tokens)} in "
            f"{lookups(fleet.regretted_lookups)}; they count as {_listed(by_class)}",
            evidence={"sticky_prefix_tokens": fleet.sticky_prefix_tokens,
                      "sticky_conversation_tokens": fleet.sticky_conversation_tokens,
                      "stored_tokens": fleet.stored_tokens, "distinct_tokens": fleet.distinct_tokens,
                      "regret_by_routing_logic": dict(logic), "regret_by_class": dict(by_class)},
            fix=f"route by prefix (saves {counted(fleet.sticky_prefix_tokens)} of what was resident), or by "
            f"conversation ({counted(fleet.sticky_conversation_tokens)})",
            tokens_lost=0,
            tokens_regained=fleet.regret_tokens,
            lookup=worst,
            cause=f"{counted(lookup.hit_tokens)} were hit on {lookup.replica}; {', '.join(lookup.best_replicas)} "
            f"would have hit {number(lookup.best_hit_tokens or 0)}{_sent(lookup)}",
            severity="info",
            replicas=sorted({result.replica for result, regret in zip(results, regrets, strict=True) if regret}),
        )
    ]  # fmt: skip


def regret_by_class(results: Sequence[LookupResult]) -> Counter[str]:
    """Return which classes of lost tokens have what another replica would have hit more, in tokens.

    What was held elsewhere counts first; the rest is on the way of the ladder from there down.
    """
    found: Counter[str] = Counter()
    for result in results:
        left = result.regret_tokens
        if not left:
            continue
        others = sorted((cls for cls in result.lost if cls not in model.SERVED), key=_rank)
        for cls in others:
            taken = min(left, max(0, result.lost[cls]))
            left -= taken
            if taken:
                found[cls] += taken
    return found


def _rank(cls: str) -> tuple[bool, bool, int]:
    return cls != model.HELD_ELSEWHERE, cls in model.BY_DESIGN, -model.CLASSES.index(cls)


def _listed(by_class: Counter[str]) -> str:
    return " and ".join(f"{cls} ({number(tokens)})" for cls, tokens in by_class.most_common())


def _sent(lookup: LookupResult) -> str:
    if not lookup.endpoint:
        return ""
    return f"; {lookup.routing_logic or 'the router'} had chosen {lookup.endpoint}"


def _router(results: Sequence[LookupResult]) -> list[Finding]:
    """Hold what a router saw cached against what the best replica would have hit."""
    rows = [
        (index, result.router_hit_tokens, best_of(result))
        for index, result in enumerate(results)
        if result.router_hit_tokens is not None
    ]
    wrong = [row for row in rows if abs(row[1] - row[2]) > ROUTER_SHARE * results[row[0]].prompt_tokens]
    if not wrong:
        return []
    requests = f"{number(len(rows))} request{'' if len(rows) == 1 else 's'}"
    worst, saw, real = max(wrong, key=lambda row: abs(row[1] - row[2]))
    return [
        Finding(
            rule="router",
            summary=f"the router saw other prefixes cached than there were: for {len(wrong)} of {requests}",
            evidence={"requests": len(rows), "wrong": len(wrong), "predicted_tokens": sum(row[1] for row in rows),
                      "real_tokens": sum(row[2] for row in rows)},
            fix="where it sees more: a router counts attention blocks, and a hit needs the state of every group; where "
            "it sees less: its events come late, or its hash and block size are not vLLM's",
            tokens_lost=0,
            lookup=worst,
            cause=f"it saw {number(saw)} tokens on a replica, the best would have hit {number(real)}"
            f"{_sent(results[worst])}",
            severity="info",
            replicas=sorted({results[row[0]].replica for row in wrong}),
        )
    ]  # fmt: skip


def _endpoints(results: Sequence[LookupResult], routed: Sequence[Routed]) -> list[Finding]:
    """Name endpoints that stand for several replicas, where another one of the same endpoint would have hit more."""
    found = []
    for each in routed:
        if not each.endpoint or len(each.replicas) < 2:
            continue
        behind = set(each.replicas)
        regretted = [
            index
            for index, result in enumerate(results)
            if result.endpoint == each.endpoint and result.routing_logic == each.routing_logic
            and result.regret_tokens and behind & set(result.best_replicas)
        ]  # fmt: skip
        if not regretted:
            continue
        tokens = sum(results[index].regret_tokens for index in regretted)
        found.append(
            Finding(
                rule="router-endpoint",
                summary=f"behind {each.endpoint} are {len(behind)} replicas, which the router cannot choose between: "
                f"another one of them would have hit {counted(tokens)} more in {lookups(len(regretted))}",
                evidence={"endpoint": each.endpoint, "replicas": sorted(behind), "regret_tokens": tokens},
                fix="give the router an endpoint for each replica (vLLM's external data-parallel load balancing, or a "
                "server each), so that it can keep a prefix on one",
                tokens_lost=0,
                tokens_regained=tokens,
                lookup=max(regretted, key=lambda index: results[index].regret_tokens),
                severity="info",
                replicas=sorted(behind),
            )
        )
    return found


def regained(rows: Sequence[LookupResult]) -> tuple[int, int]:
    """Return what routing to a replica that held the prefix gives back of lookups, in tokens, whichever class lost it.

    The first by itself: what another replica would have hit more. The second once every group there has the state that
    a hit needs: what speculation and the grid take there too is in neither.
    """
    alone = whole = 0
    for row in rows:
        there = row.regret_tokens
        reach = max((fact.data["reach_tokens"] for fact in _held_facts(row)), default=0)
        alone += there
        whole += max(there, reach - row.hit_tokens - row.lost.get(model.EXTERNAL, 0))
    return alone, whole


def _held_facts(row: LookupResult) -> list[Fact]:
    return [fact for fact in row.facts if fact.cls == model.HELD_ELSEWHERE and "reach_tokens" in fact.data]


def fix(rows: Sequence[LookupResult], worst: LookupResult) -> Fix:
    """Say what sending requests that share a prefix to one replica gives back of lookups that lost what others held."""
    advice = "route requests that share a prefix to the same replica"
    change = Change((("routing", "prefix"),), advice)
    alone, whole = regained(rows)
    if alone:
        by_class = regret_by_class(rows)
        others = Counter({cls: tokens for cls, tokens in by_class.items() if cls != model.HELD_ELSEWHERE})
        if others or alone < sum(row.lost[model.HELD_ELSEWHERE] for row in rows):
            advice += f": another one would have hit {number(alone)} more"
        if others:
            said = [f"{number(tokens)} count as {cls}" for cls, tokens in others.most_common()]
            advice += f", of which {' and '.join(said)}"
        if whole > alone:
            advice += f"; with a state in every group there, {number(whole)}"
        return Fix(advice, change, alone)
    where = "in this lookup" if len(rows) == 1 else "in these lookups"
    advice += f", and end what kept them from a hit there too: no other replica would have hit more {where}"
    lacking = next((fact.data for row in (worst, *rows) for fact in _held_facts(row) if fact.data["lacking"]), None)
    if lacking:
        states = [group for group in worst.groups if group.group in lacking["lacking"]]
        who = group_names(states) if states else "a group"
        advice += f", since {who} had no state at {number(lacking['reach_tokens'])} there"
    return Fix(f"{advice}; the two together give back up to {number(whole)}" if whole else advice, change, 0)
