"""What the instrumentation knows of one scheduler: settings for the hooks, and the sender's working state."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from otel_cache.bindings import settings
from otel_cache.bindings.probe import find_function
from otel_cache.fingerprints import Chain, digest
from otel_cache.semconv import names

ATTRIBUTE = "_otel_cache_replica"
MAX_REQUESTS = 100_000
_handles = itertools.count()


@dataclass
class RequestState:
    """A live request as the sender sees it.

    Attributes:
        chain: its fingerprints; None where its tokens are not known (prompt embeddings).
        tokens: the token ids, a view that grows.
        key: digest of the extra keys.
        planned: tokens that the request had at its latest lookup: beyond them it decodes.
        named: the last position whose fingerprint was sent.

    """

    chain: Chain | None
    tokens: Sequence[int]
    key: bytes
    planned: int = 0
    named: int = 0


class Known(NamedTuple):
    """What a key in the cache stands for: group, position in tokens, fingerprint, key digest, when stored (ns)."""

    group: int
    position: int
    fingerprint: bytes
    key: bytes
    time: int


@dataclass
class Replica:
    """One scheduler under instrumentation. The hooks write the first part, the sender alone the second."""

    handle: int
    attributes: dict[str, Any]
    alignment: int
    hash_block: int
    lookahead: int
    block_sizes: list[int]
    drops: list[bool]
    partial_hits: bool
    fingerprint_key: bytes
    pool: Any
    group_of: Callable[[Any], int]
    passes: list[tuple[Any, ...]] | None = None
    steps: int = 0

    requests: OrderedDict[str, RequestState] = field(default_factory=OrderedDict)
    known: dict[Any, Known] = field(default_factory=dict)
    storing: set[str] = field(default_factory=set)
    evicted_blocks: set[int] = field(default_factory=set)

    def request_state(self, request: Any) -> RequestState:
        """Return the state of a live `request`, made on first sight."""
        state = self.requests.get(request.request_id)
        if state is None:
            state = RequestState(
                chain=self._chain(request), tokens=request.all_token_ids, key=key_digest(request, self.fingerprint_key)
            )
            self.requests[request.request_id] = state
            if len(self.requests) > MAX_REQUESTS:
                self.requests.popitem(last=False)
        return state

    def _chain(self, request: Any) -> Chain | None:
        if getattr(request, "prompt_embeds", None) is not None:
            return None
        items = sorted(
            (feature.mm_position.offset, str(feature.identifier).encode())
            for feature in getattr(request, "mm_features", None) or ()
        )
        return Chain(self.fingerprint_key, self.hash_block, self.lookahead, items)


def attach(scheduler: Any, configured_replica_id: str | None, fingerprint_key: bytes, key_id: str) -> Replica:
    """Make `scheduler` a replica: its manager and pool carry the mark by which the hooks know that it is ours."""
    attributes = settings.replica_attributes(scheduler, configured_replica_id, key_id)
    manager = scheduler.kv_cache_manager
    pool = manager.coordinator.block_pool
    replica = Replica(
        handle=next(_handles),
        attributes=attributes,
        alignment=attributes[names.HIT_ALIGNMENT],
        hash_block=attributes[names.HASH_BLOCK_SIZE],
        lookahead=attributes[names.HASH_LOOKAHEAD_TOKENS],
        block_sizes=attributes[names.GROUPS_BLOCK_SIZE],
        drops=attributes[names.GROUPS_DROPS],
        partial_hits=attributes[names.PARTIAL_HITS],
        fingerprint_key=fingerprint_key,
        pool=pool,
        group_of=find_function("vllm.v1.core.kv_cache_utils", "get_group_id"),
    )
    pools = {id(m.block_pool): m.block_pool for m in manager.coordinator.single_type_managers}
    for owner in (scheduler, manager, pool, *pools.values()):
        setattr(owner, ATTRIBUTE, replica)
    return replica


def key_digest(request: Any, key: bytes) -> bytes:
    """Return the digest of what besides the tokens enters the request's block keys; empty: nothing does."""
    parts: list[bytes] = []
    if lora := getattr(request, "lora_request", None):
        parts += [b"lora", str(lora.lora_name).encode(), str(lora.lora_path).encode()]
    if salt := getattr(request, "cache_salt", None):
        parts += [b"salt", str(salt).encode()]
    return digest(key, *parts) if parts else b""
