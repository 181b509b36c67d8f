"""What a probe sends and sees: plain objects, lengths and positions in tokens, times in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analyzers.model import Analysis, LookupResult
from analyzers.probe.client import Answer
from analyzers.probe.metrics import Delta
from analyzers.probe.prompts import Prompt

PROBED = "probed"
CONTROL = "control"
SPECULATION_ALONE = "speculation-alone"
PLAIN = "plain"

WARM_UP = "warm-up"
GRID = "grid"
UNRELATED = "unrelated"
IDENTICAL = "identical"
EXTENSION = "extension"
BEFORE = "divergence-before"
AFTER = "divergence-after"
SHAPES = (IDENTICAL, EXTENSION, BEFORE, AFTER)

Kind = Literal[
    "hit", "miss-miss-hit", "short-then-full", "short-hit", "no-reuse", "chunk-split", "coarse-match-unit", "evicted",
    "reporting-bug", "caching-off", "contaminated", "inconclusive",
]  # fmt: skip

HIT: Kind = "hit"
MISS_MISS_HIT: Kind = "miss-miss-hit"
SHORT_THEN_FULL: Kind = "short-then-full"
SHORT: Kind = "short-hit"
NO_REUSE: Kind = "no-reuse"
CHUNK_SPLIT: Kind = "chunk-split"
COARSE: Kind = "coarse-match-unit"
EVICTED: Kind = "evicted"
REPORTING_BUG: Kind = "reporting-bug"
CACHING_OFF: Kind = "caching-off"
CONTAMINATED: Kind = "contaminated"
INCONCLUSIVE: Kind = "inconclusive"

GRAVITY: tuple[Kind, ...] = (
    CACHING_OFF, CONTAMINATED, REPORTING_BUG, NO_REUSE, MISS_MISS_HIT, EVICTED, CHUNK_SPLIT, SHORT_THEN_FULL, COARSE,
    SHORT, INCONCLUSIVE, HIT,
)  # fmt: skip
"""The verdicts, the one that a whole probe is summed up by first."""


@dataclass(frozen=True)
class Send:
    """One prompt to send.

    Attributes:
        shape: `warm-up`, `grid`, `unrelated`, or one of `SHAPES`.
        number: 0 for the first send, which is cold; then 1, 2, ...
        shared: tokens that the prompt has in common with the first of its shape; 0 for that one itself.

    """

    shape: str
    number: int
    prompt: Prompt
    shared: int

    @property
    def cold(self) -> bool:
        """Nobody has sent any of it before."""
        return self.number == 0


@dataclass(frozen=True)
class Observation:
    """What came of one send to one server.

    Attributes:
        trace_id: of the `traceparent` that went with it.
        delta: by how much the server's counters moved; None where it has none.
        usage_hit: cached tokens by the usage figures; None where the server gives none.
        lookup: the lookup that our spans show, explained; None without spans.

    """

    send: Send
    answer: Answer
    trace_id: str
    delta: Delta | None = None
    usage_hit: int | None = None
    lookup: LookupResult | None = None

    @property
    def prompt_tokens(self) -> int:
        """As the server counted them, where it did."""
        return self.send.prompt.tokens if self.answer.prompt_tokens is None else self.answer.prompt_tokens

    @property
    def metrics_hit(self) -> int | None:
        """Cached tokens by the server's counters."""
        return self.delta.hits if self.delta else None

    @property
    def spans_hit(self) -> int | None:
        """Cached tokens by our spans."""
        return self.lookup.hit_tokens if self.lookup else None

    @property
    def hit(self) -> int | None:
        """Cached tokens by the best source there is; None: there is none."""
        return next((hit for hit in (self.spans_hit, self.usage_hit, self.metrics_hit) if hit is not None), None)


@dataclass(frozen=True)
class ShapeVerdict:
    """What one shape came to.

    Attributes:
        kind: one of the verdicts.
        hits: of each send, the cold one first; None where nothing but the time says.
        pattern: their pattern, such as `miss-miss-hit`; "" without hits.
        boundary: where the verdict lies: the boundary that a hit reached late, or should have reached.
        expected: the deepest boundary of the grid that the repeats share with the first; None: the grid is unknown.
        groups: the KV-cache groups that are to blame, their kinds in `group_kinds`; empty without spans.
        cause: the class of the loss in the first repeat, "" without spans or loss.
        says: one or two sentences.
        fix: what to change, "" where nothing is known.

    """

    shape: str
    kind: Kind
    hits: Sequence[int | None]
    pattern: str
    boundary: int | None
    expected: int | None
    says: str
    groups: Sequence[int] = ()
    group_kinds: Sequence[str] = ()
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Comparison:
    """Whether prompts that were sent more than once gave the same answer at temperature 0.

    Attributes:
        compared: pairs of answers.
        differing: descriptions of the pairs that differ: shape, the two sends, and the first output token apart.
        by: `tokens`, or `text` where the server gives no token ids.

    """

    compared: int
    differing: Sequence[Mapping[str, Any]]
    by: Literal["tokens", "text"]

    @property
    def equal(self) -> bool:
        """Whether all are equal."""
        return not self.differing


@dataclass(frozen=True)
class ServerReport:
    """What one server did.

    Attributes:
        role: `probed`, `control`, `speculation-alone` or `plain`.
        model: what it calls the model.
        max_tokens: its limit; None: unknown.
        observations: in the order of sending, warm-ups and those that measured the grid left out.
        verdict, shapes: the whole, and each shape's.
        comparison: of the answers within this server; `against` is of this server's with those of the probed one.
        config: what vLLM says of its cache in /metrics.
        settings: the replica's resource attributes, as our spans have them.
        analysis: of our spans of the probe's requests; None without spans.
        sources: of `usage`, `metrics` and `spans`, those that said something.
        notes: what is missing, a sentence each.

    """

    role: str
    url: str
    model: str
    max_tokens: int | None
    observations: Sequence[Observation]
    verdict: ShapeVerdict
    shapes: Sequence[ShapeVerdict]
    comparison: Comparison
    against: Comparison | None
    config: Mapping[str, str]
    settings: Mapping[str, Any]
    analysis: Analysis | None
    sources: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True)
class Sizes:
    """What the prompts are cut to.

    Attributes:
        grid: positions at which a hit can end are its multiples; None: unknown.
        source: who says so: `spans`, `flag`, `measured`, `metrics` or `unknown`.
        prompt_tokens: length of a prompt.
        boundary: the last multiple of the grid in it.
        lookahead: tokens beyond a boundary that have to match as well.

    """

    grid: int | None
    source: str
    prompt_tokens: int
    boundary: int
    lookahead: int = 0


@dataclass(frozen=True)
class Report:
    """A whole probe."""

    salt: str
    form: Literal["token ids", "words"]
    sizes: Sizes
    repeats: int
    output_tokens: int
    servers: Sequence[ServerReport]
