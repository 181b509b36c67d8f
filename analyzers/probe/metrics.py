"""vLLM's counters, as its page /metrics has them, and by how much they move. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from prometheus_client.parser import text_string_to_metric_families

_COUNTERS = {
    "vllm:prefix_cache_queries": "queries",
    "vllm:prefix_cache_hits": "local_hits",
    "vllm:external_prefix_cache_hits": "external_hits",
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "output_tokens",
    "vllm:request_success": "finished",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
_GAUGES = {"vllm:num_requests_running": "running", "vllm:num_requests_waiting": "waiting"}
_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True)
class Counters:
    """The state of a server's counters, summed over its engines; None where it has no such counter.

    Attributes:
        queries, local_hits, external_hits, prompt_tokens, output_tokens: tokens so far.
        finished: requests so far.
        drafted, accepted: tokens of speculation so far; None without speculation.
        running, waiting: requests at this moment.
        config: the labels of vLLM's cache configuration.

    """

    queries: int | None = None
    local_hits: int | None = None
    external_hits: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finished: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    running: int | None = None
    waiting: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def caching(self) -> bool | None:
        """Whether vLLM says that prefix caching is on; None: it does not say."""
        return {"True": True, "False": False}.get(self.config.get("enable_prefix_caching", ""))

    @property
    def block_size(self) -> int | None:
        """The block size that vLLM names; None: it does not."""
        size = self.config.get("block_size", "")
        return int(size) if size.isdecimal() and int(size) else None


@dataclass(frozen=True)
class Delta:
    """By how much the counters moved; None where there is no such counter."""

    queries: int | None
    hits: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    finished: int | None
    drafted: int | None
    accepted: int | None


def parse_counters(page: str) -> Counters | None:
    """Return the counters of vLLM on a page in Prometheus's text format; None where there are none of them."""
    sums: dict[str, int] = {}
    config: Mapping[str, str] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if (known := _COUNTERS.get(name) or _GAUGES.get(name)) is not None:
                    sums[known] = sums.get(known, 0) + round(sample.value)
                elif sample.name == _CONFIG:
                    config = dict(sample.labels)
    except (ValueError, OverflowError):
        return None
    return Counters(**sums, config=config) if sums else None


def moved(before: Counters, after: Counters) -> Delta:
    """Return by how much the counters moved from `before` to `after`."""

    def by(name: str) -> int | None:
        first, last = getattr(before, name), getattr(after, name)
        return None if first is None or last is None else last - first

    local, external = by("local_hits"), by("external_hits")
    hits = None if local is None else local + (external or 0)
    return Delta(hits=hits, **{each.name: by(each.name) for each in fields(Delta) if each.name != "hits"})
