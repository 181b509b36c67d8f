"""What routers say of the requests they sent: whom they chose, and what they saw cached.

A router's span stands in the trace of its request. llm-d's says what its index saw cached on some replica and which
endpoints were best; the production stack's which endpoint it chose and by which rule; vLLM's own, and any other HTTP
client, whom it called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.model import Capture, LookupResult, Routed


@dataclass(frozen=True)
class _Trace:
    """The spans of other programs in one trace, in time, and how many requests it has."""

    rows: Sequence[Mapping[str, Any]]
    requests: int

    def last(self, column: str, before: int) -> Mapping[str, Any] | None:
        """Return the last span that has `column` and began before a request did (ns); any, where there is one only.

        The clocks of a trace with one request may differ; in one with several they have to tell which is whose.
        """
        having = [row for row in self.rows if row[column] is not None]
        return next((row for row in reversed(having) if self.requests == 1 or row["start"] <= before), None)


def with_routers(capture: Capture, results: Sequence[LookupResult]) -> list[LookupResult]:
    """Return the results, each with what its router says."""
    if capture.usages.is_empty():
        return list(results)
    usages = capture.usages.to_dicts()
    callers = {row["span_id"]: row for row in usages}
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for row in usages:
        by_trace.setdefault(row["trace_id"], []).append(row)
    requests = {(row["life"], row["request_id"]): row for row in capture.requests.iter_rows(named=True)}
    counts: dict[str, int] = {}
    for row in requests.values():
        counts[row["trace_id"]] = counts.get(row["trace_id"], 0) + 1
    for result in results:
        own = requests.get((result.life, result.request_id))
        rows = by_trace.get(own["trace_id"], []) if own else []
        if own and rows:
            trace = _Trace(rows, counts[own["trace_id"]])
            _add_router(result, trace, own["start"], callers.get(own["parent_span_id"]))
    return list(results)


def _add_router(result: LookupResult, trace: _Trace, start: int, caller: Mapping[str, Any] | None) -> None:
    chosen = caller if caller and caller["endpoint"] else trace.last("endpoint", start)
    endpoint = chosen["endpoint"] if chosen else (caller or {}).get("called")
    logic = trace.last("routing_logic", start) if endpoint else None
    ranks = [row["router_rank"] for row in trace.rows if row["router_rank"] is not None]
    surest = _Trace([row for row in trace.rows if ranks and row["router_rank"] == min(ranks)], trace.requests)
    seen = surest.last("router_blocks", start)
    result.endpoint = endpoint
    result.routing_logic = logic["routing_logic"] if logic else ""
    if seen:
        result.router_hit_tokens = round(seen["router_blocks"] / seen["router_keys"] * result.prompt_tokens)


def best_of(result: LookupResult) -> int:
    """Return what the best replica would have hit, tokens."""
    return result.hit_tokens if result.best_hit_tokens is None else result.best_hit_tokens


def routed_of(results: Sequence[LookupResult]) -> list[Routed]:
    """Return, by endpoint and rule, what became of the requests that a router tells of."""
    grouped: dict[tuple[str, str], list[LookupResult]] = {}
    for result in results:
        if result.endpoint is not None or result.router_hit_tokens is not None:
            grouped.setdefault((result.endpoint or "", result.routing_logic), []).append(result)
    return [
        Routed(
            endpoint=endpoint,
            routing_logic=logic,
            replicas=sorted({result.replica for result in own}),
            lookups=len(own),
            hit_tokens=sum(result.hit_tokens for result in own),
            regret_tokens=sum(result.regret_tokens for result in own),
            predicted_lookups=sum(1 for result in own if result.router_hit_tokens is not None),
            predicted_tokens=sum(result.router_hit_tokens or 0 for result in own),
            best_tokens=sum(best_of(result) for result in own if result.router_hit_tokens is not None),
        )
        for (endpoint, logic), own in sorted(grouped.items())
    ]
