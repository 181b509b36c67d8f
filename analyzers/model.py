"""What an analysis is made of and what it yields: plain objects, all lengths and positions in tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from analyzers.changes import Change, Given, together
from analyzers.made import made_when_asked

# The classes of a lost token, in the order of the ladder.
COLD = "cold"
KEY_DIFFERENCE = "key_difference"
TAIL = "tail"
IN_FLIGHT = "in_flight"
EVICTED = "evicted"
RESET = "reset"
HELD_ELSEWHERE = "held_elsewhere"
SPECULATIVE_DROP = "speculative_drop"
ALIGNMENT = "alignment"
NOT_MATERIALIZED = "not_materialized"
SHIFTED_BOUNDARY = "shifted_boundary"
CHECKPOINT_EVICTED = "checkpoint_evicted"
DISCARDED = "discarded_after_lookup"
SKIPPED = "skipped"
EXTERNAL = "external_hit"
UNEXPLAINED = "unexplained"
UNKNOWN = "unknown"

CLASSES = (
    COLD, KEY_DIFFERENCE, TAIL, IN_FLIGHT, EVICTED, RESET, HELD_ELSEWHERE, SPECULATIVE_DROP, ALIGNMENT,
    NOT_MATERIALIZED, SHIFTED_BOUNDARY, CHECKPOINT_EVICTED, DISCARDED, SKIPPED, EXTERNAL, UNEXPLAINED, UNKNOWN,
)  # fmt: skip
BY_DESIGN = frozenset({COLD, TAIL, SPECULATIVE_DROP})
SERVED = frozenset({EXTERNAL})
"""Tokens that the lookup did not hit and that need not be computed all the same."""

HELD_LESS = (EVICTED, RESET, HELD_ELSEWHERE, IN_FLIGHT)
"""Losses that leave less of the prefix than the request that computed it had, and so move the needed boundary."""

FUNNEL = ("prompt", "seen_before", "held_somewhere", "held_here", "agreed", "served")
"""What is left of the prompts, in tokens, stage by stage."""

State = Literal["stored", "masked", "not_materialized", "evicted", "unknown"]


@dataclass(frozen=True)
class Life:
    """One life of a replica: a process with an empty cache at its start.

    Attributes:
        index: position in `Capture.lives`, the key `life` of the frames.
        replica: `vllm.replica.id`.
        instance: `service.instance.id`.
        attributes: the resource attributes as exported.

    """

    index: int
    replica: str
    instance: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Capture:
    """All spans of a capture, as frames. `life` is an index into `lives`; times are nanoseconds since the epoch.

    Every frame is sorted by (life, sequence). Columns that all of them share: `life` i32, `sequence` i64,
    `number` i64 (null where absent), `missing` i64 (0 where absent), `start` i64, `end` i64. Those of lookups and of
    requests have `trace_id`, `span_id` and `parent_span_id` str as well. Fingerprints are concatenated, 8 bytes each,
    in binary columns.

    Attributes:
        lives: the replicas' lives.
        lookups: `request_id` str, `prompt_tokens`, `hit_tokens`, `max_hit_tokens`,
            `uncached_common_prefix_tokens`, `attempts`, `admitted_tokens` (null: not admitted) i64, `admitted`,
            `skipped` bool, `first` i64, `values`, `hit_fingerprint`, `ladder`, `common`, `prompt_digest`, `plain`,
            `key`, `lora`, `salt` binary, `items` str (`offset:digest`, separated by commas), `external_tokens`,
            `discarded_tokens` i64, `connector` bool.
        groups: a row per group and lookup, joined to its lookup by (life, parent_span_id = lookups.span_id):
            `parent_span_id` str, `group` i32, `kind` str, `block_size`, `hit_tokens` i64, `stored_below`,
            `stored_above` i64 or null, `asked_tokens`, `pass_hit_tokens`, `dropped_tokens`, `alignment` list[i64] per
            pass.
        stores: a row per store span and group: `request_id` str, `origin` str, `chunk_start`, `chunk_end` i64,
            `group` i32, `stored`, `masked`, `not_materialized`, `wanted` str (positions as exported), `first` i64 (null
            where absent), `values` binary.
        evicts: a row per evict span and group: `group` i32, `positions` str, `fingerprints`, `keys` binary,
            `ages` list[i64] (ms), `evictor_request_id`, `evictor_groups` (as exported), `reason` str, `reset` bool (a
            reset has no group: -1).
        steps: `index`, `prefill_tokens`, `decode_tokens`, `running_requests`, `waiting_requests`,
            `preempted_requests`, i64, `pool_usage`, `schedule_duration`, `execute_duration` f64 (a share; seconds;
            null where unknown).
        requests: a row per request span, by (life, start): `request_id`, `external_id`, `finish_reason` str,
            `session` binary, `prompt_tokens`, `hit_tokens`, `output_tokens`, `cache_read_tokens`, `preemptions`,
            `drafted_tokens`, `accepted_tokens` i64, `queue_duration`, `time_to_first_token` f64 (seconds); null where
            absent. Its `sequence` may be null.
        usages: what spans of other programs say of a request's tokens: `trace_id`, `span_id`, `parent_span_id`,
            `name`, `request_id` str, `start`, `end`, `prompt_tokens`, `cache_read_tokens` i64 or null; of a router
            `router_keys`, the prompt's blocks as it counts them, and `router_blocks`, how many of them it saw cached
            (`router_rank`: the lower the surer), `endpoint`, whom it chose, and `routing_logic`, how; `called`: the
            server that an HTTP client called.
        counters: points of vLLM's counters of its prefix cache: `series` str (attributes as JSON), `name`, `what`
            (`queries`, `hits`) str, `time` i64 (ns), `value` f64 (tokens), `delta` bool (since the point before).
        sampled_spans: spans of the evidence that sampling is known to have kept back.
        unexported_spans: spans that found no room on their way to the back end.
        spans: number of spans read, other programs' spans not counted.
        foreign_spans: spans of other programs.
        skipped_lines: lines or records that could not be read.
        notes: what was skipped and why, a sentence each.

    """

    lives: Sequence[Life]
    lookups: pl.DataFrame
    groups: pl.DataFrame
    stores: pl.DataFrame
    evicts: pl.DataFrame
    steps: pl.DataFrame
    requests: pl.DataFrame
    usages: pl.DataFrame
    counters: pl.DataFrame
    spans: int
    foreign_spans: int
    skipped_lines: int
    notes: Sequence[str] = ()
    sampled_spans: int = 0
    unexported_spans: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """What one group had at the boundary that a lookup needed. Lookups that found the same share it.

    Attributes:
        group: number of the group.
        kind: `full_attention`, `mamba`, `sliding_window`, ...
        block_size: tokens per block.
        asked_tokens: the longest prefix that vLLM asked this group for; None where it was not asked.
        hit_tokens: what the group returned in its last pass.
        stored_below: deepest position at or below the needed boundary at which the group has a state; None: none.
        stored_above: nearest one above; None: none, or beyond what was probed.
        state: what became of the group's state at the needed boundary.
        chunk_end: end of the chunk that ran over the needed boundary, where the state was not stored; else None.
        wanted: the positions that the retention mask asked for in the request that computed the boundary.
        unmade: those of `wanted` where no chunk ended, so that nothing was stored for them.
        chunk_start: start of the chunk that `chunk_end` is the end of: no chunk ended between them.

    """

    group: int
    kind: str
    block_size: int
    asked_tokens: int | None
    hit_tokens: int
    stored_below: int | None
    stored_above: int | None
    state: State
    chunk_end: int | None = None
    wanted: Sequence[int] = ()
    unmade: Sequence[int] = ()
    chunk_start: int | None = None


@made_when_asked("says")
@dataclass(frozen=True, slots=True)
class Fact:
    """What the evidence says of a loss of `tokens` to the class `cls`; `data` depends on the class.

    `data["also"]` is true where it is another cause that would explain the loss as well.
    """

    cls: str
    tokens: int
    says: str
    data: Mapping[str, Any] = field(default_factory=dict)


@made_when_asked("cause", "funnel", "ladder")
@dataclass(slots=True)
class LookupResult:
    """One lookup explained: `hit_tokens + sum(lost.values()) == prompt_tokens`.

    Attributes:
        request_id, replica: of the lookup; `life` is the index of the replica's life, `time` its start in ns.
        attempts: consecutive attempts with this outcome.
        prompt_tokens, hit_tokens: as vLLM had them. `predicted_hit_tokens` is what the evidence says.
        needed_boundary: the boundary that every group had to have a state at (b6 of the ladder).
        lost: tokens per class, classes without a token left out.
        limiting_groups: groups without the state at the needed boundary, ascending.
        groups: a row per group.
        reason: what shifted the boundary, or why the alignment lost it; "" where there is nothing to say.
        cause: one sentence on the largest avoidable loss, "" where nothing avoidable was lost.
        producer: the request that had computed the needed boundary; None where there was none.
        intact_boundary: where the hit would have ended, had this replica lost nothing; None: not known.
        facts: what the evidence says of each loss.
        funnel: tokens at each stage of `FUNNEL`; None: not known.
        best_hit_tokens: the longest hit on any replica at that moment; None where there is one replica only.
        best_replicas: those that would have given it; the lookup's own where none would have given any.
        previous_turn_hit_tokens: hit on the replica that had the prompt which this one goes on from; None: no such.
        family: the request id of the first request of its family, "" until it is known.
        endpoint: whom a router sent it to, as the router names it; None: no router's span is in its trace.
        routing_logic: by which rule of the router's, "" where it does not say.
        router_hit_tokens: what the router saw cached of the prompt, on some replica; None: it does not say.
        ladder: (class, from, to) in tokens, from the prompt down to the predicted hit.

    """

    request_id: str
    replica: str
    life: int
    time: int
    attempts: int
    prompt_tokens: int
    hit_tokens: int
    predicted_hit_tokens: int
    needed_boundary: int
    lost: Mapping[str, int]
    limiting_groups: Sequence[int]
    groups: Sequence[GroupState]
    reason: str = ""
    cause: str = ""
    producer: str | None = None
    intact_boundary: int | None = None
    facts: Sequence[Fact] = ()
    funnel: Sequence[int] | None = None
    best_hit_tokens: int | None = None
    best_replicas: Sequence[str] = ()
    previous_turn_hit_tokens: int | None = None
    family: str = ""
    ladder: Sequence[tuple[str, int, int]] = ()
    endpoint: str | None = None
    routing_logic: str = ""
    router_hit_tokens: int | None = None

    @property
    def regret_tokens(self) -> int:
        """What the best replica would have hit more."""
        return max(0, (self.best_hit_tokens or 0) - self.hit_tokens)


@dataclass(frozen=True)
class Sequence_:
    """Requests that share a prefix, in time, on one replica or across several.

    Attributes:
        shape: `identical` sends of one prompt; `extension`: each contains the one before; `conversation`: its answer
            too, or vLLM's session says so; `divergence`: they leave their parent.
        replicas: of each request.
        shared_tokens: of a divergence or an extension, how much is shared with the first; 0 where all is.
        boundary: the last position of the hit grid within `shared_tokens`.

    """

    requests: Sequence[str]
    shape: Literal["identical", "extension", "conversation", "divergence"]
    hits: Sequence[int]
    pattern: str
    cause: str
    replicas: Sequence[str] = ()
    shared_tokens: int = 0
    boundary: int = 0


Range = tuple[float, float]
"""From the lowest to the highest that the evidence allows."""


@dataclass(frozen=True)
class Finding:
    """Something to change.

    Attributes:
        severity: `error`: the evidence contradicts itself or vLLM; `warning`: tokens that a change gives back;
            `info`: good to know.
        lookup: index into `Analysis.lookups` of the one that shows it best, or None; `cause` says in one sentence
            what happened there.
        tokens_lost: what the lookups lost to it; 0: it is not about a class of lost tokens.
        seconds_lost: of prefill, from the speed that the capture itself shows; None where it shows none.
        replicas: those affected.
        tokens_regained: what the fix by itself gives back at most, where that can be computed; None: where it cannot.
            What it gives back may be counted as lost to other findings.
        change: what the fix sets: findings with equal settings have one fix; None: the fix is this finding's own.

    """

    rule: str
    summary: str
    evidence: Mapping[str, Any]
    fix: str
    tokens_lost: int
    lookup: int | None = None
    cause: str = ""
    severity: Literal["error", "warning", "info"] = "warning"
    seconds_lost: Range | None = None
    replicas: Sequence[str] = ()
    tokens_regained: int | None = None
    change: Change | None = None

    @property
    def promise(self) -> int:
        """What the fix gives back, tokens: what can be computed of it, else all that was lost."""
        return self.tokens_lost if self.tokens_regained is None else self.tokens_regained


@dataclass(frozen=True)
class Coverage:
    """What the figures rest on.

    Attributes:
        missing_records: known to be missing, without what sampling kept back.
        sampled_spans: spans of the evidence that sampling kept back: not lost, but not there.
        unexported_spans: spans that found no room on their way to the back end.
        samplers: descriptions of the samplers that thinned the capture.
        begin, end: of the evidence, ns since the epoch; 0 where there is none.
        incomplete_replicas: those with holes; causes that need what is missing are `unknown`.
        skew: per replica, by how many ms at least its clock differs from that of its requests' callers, where a
            caller's span is in the capture; below 0: it is behind.

    """

    spans: int
    replicas: int
    lookups: int
    missing_records: int
    skipped_lines: int
    foreign_spans: int = 0
    notes: Sequence[str] = ()
    sampled_spans: int = 0
    unexported_spans: int = 0
    samplers: Sequence[str] = ()
    begin: int = 0
    end: int = 0
    incomplete_replicas: Sequence[str] = ()
    skew: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """What several replicas together did; tokens.

    Attributes:
        regret_tokens: what the best replica would have hit more, at each lookup's moment.
        regretted_lookups: lookups where another replica had more.
        regret_by_family: the families that lost most, with their tokens.
        stored_tokens, distinct_tokens: prefixes stored, on all replicas together, and each once.
        sticky_prefix_tokens: what routing to the replica that holds the longest prefix would have saved.
        sticky_conversation_tokens: what routing to the replica of the previous turn would have saved.

    """

    regret_tokens: int
    regretted_lookups: int
    regret_by_family: Sequence[tuple[str, int]]
    stored_tokens: int
    distinct_tokens: int
    sticky_prefix_tokens: int
    sticky_conversation_tokens: int


@dataclass(frozen=True)
class Routed:
    """What became of the requests that a router sent to one endpoint.

    Attributes:
        endpoint: as the router names it; "" for those whose endpoint is not known.
        routing_logic: by which rule of the router's, "" where it does not say.
        replicas: those that they arrived at.
        lookups: how many.
        hit_tokens, regret_tokens: of all of them together.
        predicted_lookups: those of which the router says what it saw cached: `predicted_tokens` together, and
            `best_tokens`, what the best replica would have hit of them.

    """

    endpoint: str
    routing_logic: str
    replicas: Sequence[str]
    lookups: int
    hit_tokens: int
    regret_tokens: int
    predicted_lookups: int
    predicted_tokens: int
    best_tokens: int


@dataclass(frozen=True)
class CounterCheck:
    """What a counter of vLLM's counted in the time between its first and its last point, and what the lookups say.

    Attributes:
        source: name of the metric.
        what: `queries` (tokens looked up) or `hits`.
        replicas: those whose counters were added up: one, unless the capture does not tell which counter is whose.
        begin, end: of the time, ns since the epoch.
        said: tokens by the counter.
        least, most: tokens by the lookups, without and with those so near to either end that a point may or may not
            have them.
        with_refused: whether `said` fits once lookups count again each time that admission refused them.

    """

    source: str
    what: str
    replicas: Sequence[str]
    begin: int
    end: int
    said: int
    least: int
    most: int
    with_refused: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the counter can be right."""
        return self.least <= self.said <= self.most


@dataclass(frozen=True)
class GroupCapacity:
    """What one group does with the pool; blocks are counted by their keys.

    Attributes:
        drafter: only this group, or this and few others, are flagged for speculation.
        peak_blocks: cached at once at the most; `share` of what all groups cached at their common peak.
        evicted: blocks that were given to others.
        segment_blocks: blocks stored per scheduler block of distinct prefix.
        age_ms: age at eviction, (median, 90th percentile); None where nothing went.
        pushed_out: blocks that this group's allocations took from any group; `pushed_out_share` of all blocks of
            which it is known which group took them, 0 to 1.

    """

    group: int
    kind: str
    block_size: int
    drafter: bool
    peak_blocks: int
    share: float
    stored: int
    evicted: int
    segment_blocks: float
    age_ms: Range | None
    pushed_out: int = 0
    pushed_out_share: float = 0.0


@dataclass(frozen=True)
class Eviction:
    """So many cached blocks of the group `of` were given to the group `by`; None: not known which."""

    by: int | None
    of: int
    blocks: int


@dataclass(frozen=True)
class Capacity:
    """What one replica's pool held.

    Attributes:
        occupancy: (ms since the first lookup, blocks cached per group), at most 60 moments.
        reuse_gap_ms: from an eviction to the lookup that missed the block, (median, 90th percentile).
        warm: conversations that kept all of their prefix from turn to turn while another one did as well, at most
            so many at once; `longest` are the two longest of them, by tokens: (first request, tokens).
        evictions: the matrix of evicting and evicted groups, without its zeros.
        cached_most: blocks that all groups together cached at once, at the most.
        used_most: share of the pool that requests used, at the most, as the steps say, 0 to 1; None: none says.

    """

    replica: str
    num_blocks: int
    groups: Sequence[GroupCapacity]
    occupancy: Sequence[tuple[float, Sequence[int]]]
    reuse_gap_ms: Range | None
    warm: int
    longest: Sequence[tuple[str, int]]
    evictions: Sequence[Eviction] = ()
    cached_most: int = 0
    used_most: float | None = None


@dataclass(frozen=True)
class Analysis:
    """The whole result. `replicas` maps a replica's id to its settings (resource attributes).

    `prefill_seconds` is how long the lost tokens that could have been served took to compute, `None` where the
    capture shows no speed. `fleet` is None where there is one replica only.
    """

    coverage: Coverage
    replicas: Mapping[str, Mapping[str, Any]]
    lookups: Sequence[LookupResult]
    sequences: Sequence[Sequence_]
    findings: Sequence[Finding]
    lost: Mapping[str, int] = field(default_factory=dict)
    fleet: Fleet | None = None
    capacity: Sequence[Capacity] = ()
    prefill_seconds: Range | None = None
    avoidable_seconds: Range | None = None
    counters: Sequence[CounterCheck] = ()
    routed: Sequence[Routed] = ()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all lookups."""
        return sum(lookup.prompt_tokens for lookup in self.lookups)

    @property
    def hit_tokens(self) -> int:
        """Tokens that were served from cache."""
        return sum(lookup.hit_tokens for lookup in self.lookups)

    @property
    def best_fixes(self) -> Sequence[tuple[int, str]]:
        """What each fix for lost tokens gives back, all findings that it ends together, and the fix; most first."""
        return together(
            Given(finding.promise, finding.fix, finding.change)
            for finding in self.findings
            if finding.tokens_lost and finding.severity == "warning"
        )

    @property
    def funnel(self) -> Mapping[str, int]:
        """Tokens at each stage of `FUNNEL`, over the lookups whose ladder is known."""
        known = [lookup.funnel for lookup in self.lookups if lookup.funnel is not None]
        return {stage: sum(row[index] for row in known) for index, stage in enumerate(FUNNEL)}
