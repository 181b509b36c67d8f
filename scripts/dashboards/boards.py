"""The dashboards: what a fleet's caches do, and what one replica's does."""

from dataclasses import replace

from otel_cache.semconv import names
from scripts.dashboards.grafana import PRODUCT, Board, Panel, Query, Row
from scripts.dashboards.promql import (
    FINISH_REASON,
    KIND,
    LIMITED_BY,
    LOST_TO,
    METRICS,
    MODEL,
    REPLICA,
    label,
    metric,
    or_zero,
    quantile,
    rate,
    series,
    share,
)
from scripts.semconv.registry import load

WINDOW = "$__rate_interval"
CHOSEN = f'{MODEL}=~"$model", {REPLICA}=~"$replica"'
ATTRIBUTES = load().attributes
MODELS = ("model", "Model", f"label_values({metric(names.ASKED_TOKENS)}, {MODEL})")
REPLICAS = ("replica", "Replica", f'label_values({metric(names.ASKED_TOKENS)}{{{MODEL}=~"$model"}}, {REPLICA})')
BY_MODEL = f"{{{{{MODEL}}}}}"
BY_REPLICA = f"{{{{{REPLICA}}}}}"


def fast(name: str, by: str = "", where: str = "") -> str:
    """Return how fast a counter rises for what is chosen in the dashboard."""
    return rate(name, WINDOW, by, ", ".join(filter(None, (CHOSEN, where))))


def meaning(name: str) -> str:
    """Return what the registry says of a metric."""
    return " ".join(filter(None, (METRICS[name].brief, METRICS[name].note)))


def values(attribute: str) -> str:
    """Return what the registry says of an enumeration's values."""
    return "; ".join(f"`{member.value}`: {member.brief}" for member in ATTRIBUTES[attribute].members)


def counted(title: str, name: str, unit: str, by: str, legend: str, **options: object) -> Panel:
    """Return a panel of how fast a counter rises, with the registry's words for it."""
    return Panel(title, meaning(name), unit, [Query(fast(name, by), legend)], **options)  # type: ignore[arg-type]


def durations(title: str, name: str, by: str = "") -> Panel:
    """Return a panel of a histogram's median and 99th percentile."""
    legend = f"{{{{{by}}}}} " if by else ""
    queries = [
        Query(quantile(q, name, WINDOW, by, CHOSEN), f"{legend}{word}") for q, word in ((0.5, "p50"), (0.99, "p99"))
    ]
    return Panel(title, meaning(name), "s", queries)


def spread(title: str, name: str) -> Panel:
    """Return a heat map of a histogram."""
    expr = f"sum by (le) (increase({series(name, CHOSEN, '_bucket')}[{WINDOW}]))"
    return Panel(title, meaning(name), "s", [Query(expr, "{{le}}")], "heatmap")


HIT_SHARE = share(fast(names.HIT_TOKENS), fast(names.ASKED_TOKENS))
SHORTFALL_SHARE = share(fast(names.GROUP_SHORTFALL_TOKENS), fast(names.ASKED_TOKENS))
EVICTED_SHARE = share(
    or_zero(fast(names.LOST_TOKENS, where=f'{LOST_TO}="{names.LINK_EVICTED}"'), fast(names.ASKED_TOKENS)),
    fast(names.ASKED_TOKENS),
)
NUMBERS = [
    Panel(
        "Hit share",
        "Prompt tokens that came from the cache, of all that were asked for.",
        "percentunit",
        [Query(HIT_SHARE, "")],
        "number",
        "OtelCacheHitShareFell",
        width=6,
        height=4,
    ),
    Panel(
        "Lost for want of one group's state",
        meaning(names.GROUP_SHORTFALL_TOKENS) + " As a share of the tokens asked for.",
        "percentunit",
        [Query(SHORTFALL_SHARE, "")],
        "number",
        "OtelCacheBoundaryLoss",
        width=6,
        height=4,
    ),
    Panel(
        "Lost to evictions",
        "Tokens of lookups whose next state an eviction is known to have taken, of all that were asked for.",
        "percentunit",
        [Query(EVICTED_SHARE, "")],
        "number",
        "OtelCacheEvictionLoss",
        width=6,
        height=4,
    ),
    Panel(
        "Replicas",
        "Replicas that lookups came from.",
        "short",
        [Query(f"count(count by ({REPLICA}) ({series(names.ASKED_TOKENS, CHOSEN)}))", "")],
        "number",
        width=6,
        height=4,
    ),
]
TOKENS = Panel(
    "Prompt tokens",
    meaning(names.ASKED_TOKENS)
    + f" Lost tokens by {label(names.LOOKUP_LIMITED_BY)}: {values(names.LOOKUP_LIMITED_BY)}.",
    "cps",
    [
        Query(fast(names.HIT_TOKENS), "hit"),
        Query(fast(names.EXTERNAL_TOKENS), "external"),
        Query(fast(names.LOST_TOKENS, LIMITED_BY), f"lost: {{{{{LIMITED_BY}}}}}"),
    ],
    "stack",
    "OtelCacheHitShareFell",
)
BLAME = Panel(
    "Lost tokens by what took the state",
    ATTRIBUTES[names.LOOKUP_LOST_TO].brief
    + f" {values(names.LOOKUP_LOST_TO)}; `none`: nothing is known to be: the prompt is new, or elsewhere.",
    "cps",
    [Query(fast(names.LOST_TOKENS, LOST_TO), f"{{{{{LOST_TO}}}}}")],
    "stack",
    "OtelCacheEvictionLoss",
)
EVICTIONS = counted(
    "Evictions by kind of group", names.EVICTED_BLOCKS, "cps", KIND, f"{{{{{KIND}}}}}", kind="stack",
    alert="OtelCacheEvictionLoss",
)  # fmt: skip
PREFILL = counted("Prefill", names.PREFILL_TOKENS, "cps", REPLICA, BY_REPLICA)
PREEMPTIONS = counted(
    "Preemptions", names.PREEMPTIONS, "cps", REPLICA, BY_REPLICA, alert="OtelCachePreemptions"
)  # fmt: skip
REQUESTS = counted(
    "Requests by how they ended", names.ENGINE_REQUESTS, "reqps", FINISH_REASON, f"{{{{{FINISH_REASON}}}}}"
)
LOOKUPS = counted(
    "Lookups by what limited the hit", names.LOOKUPS, "cps", LIMITED_BY, f"{{{{{LIMITED_BY}}}}}", kind="stack"
)
LOSSES = Panel(
    "What did not arrive",
    "Records that the sidecar never got, spans that it had no room for, and spans that its sampling kept back.",
    "cps",
    [
        Query(fast(names.LOST_RECORDS), "records lost"),
        Query(fast(names.UNDELIVERED_SPANS), "spans undelivered"),
        Query(fast(names.SAMPLED_OUT_SPANS), "spans sampled out"),
    ],
    alert="OtelCacheRecordsLost",
)
GAP = Panel(
    "Evidence that got lost on its way",
    "Of the numbers that the sidecar gave its lookup, store and evict spans, the share that never arrived.",
    "percentunit",
    [Query(f"otel_cache:evidence_gap:ratio_rate30m{{{CHOSEN}}}", BY_REPLICA)],
    alert="OtelCacheEvidenceGap",
)
DELAY = Panel(
    "Delay of spans",
    meaning(names.EXPORT_DELAY) + " The 90th percentile: it grows while spans wait in the sidecar's spool.",
    "s",
    [Query(f"otel_cache:export_delay_seconds:p90_15m{{{CHOSEN}}}", BY_REPLICA)],
    alert="OtelCacheSpoolFilling",
)
QUEUE = Panel(
    "Queues of the collectors",
    "How full the queue before each exporter is.",
    "percentunit",
    [Query("otel_cache:collector_queue_share:ratio", "{{exporter}} {{instance}}")],
    alert="OtelCacheCollectorQueueFilling",
    maximum=1,
)

FLEET = Board(
    f"{PRODUCT}-fleet",
    "otel-cache: fleet",
    "Prefix caches of all replicas: what they serve, what is lost and to what, and whether the evidence is whole.",
    [
        Row("Served and lost", [*NUMBERS, TOKENS, BLAME]),
        Row(
            "By model and replica",
            [
                Panel(
                    "Hit share by model",
                    "Prompt tokens that came from the cache, of all that were asked for.",
                    "percentunit",
                    [Query(share(fast(names.HIT_TOKENS, MODEL), fast(names.ASKED_TOKENS, MODEL)), BY_MODEL)],
                    alert="OtelCacheHitShareFell",
                    maximum=1,
                ),
                Panel(
                    "Hit share by replica",
                    "Replicas of one model that differ get different prompts: the router decides.",
                    "percentunit",
                    [Query(share(fast(names.HIT_TOKENS, REPLICA), fast(names.ASKED_TOKENS, REPLICA)), BY_REPLICA)],
                    alert="OtelCacheRoutingLoss",
                    maximum=1,
                ),
                PREFILL,
                REQUESTS,
            ],
        ),
        Row("Cache", [EVICTIONS, PREEMPTIONS]),
        Row(
            "Durations",
            [durations("Lookups", names.LOOKUP_DURATION), durations("Steps", names.STEP_DURATION)],
        ),
        Row("Evidence", [LOSSES, GAP, DELAY, QUEUE]),
    ],
    [MODELS, REPLICAS],
)

REPLICA_DETAIL = Board(
    f"{PRODUCT}-replica",
    "otel-cache: replica",
    "The prefix cache of one replica.",
    [
        Row("Served and lost", [*(replace(each, width=8) for each in NUMBERS[:3]), TOKENS, BLAME, LOOKUPS, REQUESTS]),
        Row(
            "Cache",
            [EVICTIONS, counted("Cleared", names.RESETS, "cps", "", "resets"), PREFILL, PREEMPTIONS],
        ),
        Row(
            "Durations",
            [
                spread("Lookups", names.LOOKUP_DURATION),
                spread("Steps", names.STEP_DURATION),
                durations("Lookups", names.LOOKUP_DURATION),
                durations("Steps", names.STEP_DURATION),
            ],
        ),
        Row("Evidence", [LOSSES, GAP, DELAY]),
    ],
    [MODELS, REPLICAS],
    many=False,
)

RUNBOOK = Board(f"{PRODUCT}-runbook", "otel-cache: runbook", "What to do about each alert.", [])
BOARDS = (FLEET, REPLICA_DETAIL)
