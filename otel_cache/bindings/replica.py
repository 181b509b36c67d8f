"""What the instrumentation knows of one scheduler, or of one worker: settings for the hooks, and the sender's state."""

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from otel_cache.bindings import settings
from otel_cache.bindings.key_table import KeyTable
from otel_cache.bindings.probe import find_function, reader
from otel_cache.errors import BindingError
from otel_cache.fingerprints import Chain, Printer
from otel_cache.keys import digest
from otel_cache.semconv import names

ATTRIBUTE = "_otel_cache_replica"
MAX_REQUESTS = 100_000
CONTEXT_BYTES = 24
"""A span's trace id and span id."""
_handles = itertools.count()


@dataclass
class RequestState:
    """A live request as the sender sees it.

    Attributes:
        chain: its fingerprints; None where its tokens are not known (prompt embeddings).
        tokens: the token ids, a view that grows.
        key: digest of the extra keys but the items; `lora`, `salt` and `session` those of one each, empty for none.
        items: (offset, digest) of multimodal items.
        planned: tokens that the request had at its latest lookup: beyond them it decodes.
        named: the last position whose fingerprint was sent.
        outcome: what its latest lookup that was sent asked for and got.
        drafted: speculative tokens that were verified for it, and how many of them were accepted.

    """

    chain: Chain | None
    tokens: Sequence[int]
    key: bytes
    lora: bytes
    salt: bytes
    session: bytes
    items: list[tuple[int, bytes]]
    planned: int = 0
    named: int = 0
    outcome: Any = None
    drafted: int = 0
    accepted: int = 0


@dataclass
class Replica:
    """One scheduler under instrumentation. The hooks use the first part, the sender alone the second.

    `keys_of` reads the key of each of some blocks, None where a block has none. `taking` is the pool that is just
    getting new blocks, `taken` those blocks and, in parallel, the keys they had.
    """

    handle: int
    id: str
    attributes: dict[str, Any]
    alignment: int
    hash_block: int
    lookahead: int
    block_sizes: list[int]
    drops: list[bool]
    partial_hits: bool
    fingerprint_key: bytes
    printer: Printer
    pool: Any
    usable_blocks: int
    cached_keys: "Cached"
    keys_of: Callable[[Sequence[Any]], list[Any]]
    key_suffixes: list[bytes]
    group_of: Callable[[Any], int]
    request_of: Callable[[Any], Any]
    keys: KeyTable
    passes: list[tuple[Any, ...]] | None = None
    steps: int = 0
    contexts: list[bytes] = field(default_factory=list)
    taking: Any = None
    taken: tuple[list[Any], list[Any]] | None = None

    requests: OrderedDict[str, RequestState] = field(default_factory=OrderedDict)
    prefilling: set[str] = field(default_factory=set)
    storing: set[str] = field(default_factory=set)
    evicted_blocks: set[int] = field(default_factory=set)

    def draw_contexts(self) -> list[bytes]:
        """Return random ids for spans, made anew: many at once, from the system, which nobody can have seeded."""
        drawn = os.urandom(CONTEXT_BYTES * 256)
        self.contexts = [drawn[at : at + CONTEXT_BYTES] for at in range(0, len(drawn), CONTEXT_BYTES)]
        return self.contexts

    def renew_cache(self) -> None:
        """Look at the pool's keys where they are now: a reset gives the pool another map."""
        self.cached_keys = _cached_keys(self.pool.cached_block_hash_to_block)

    def request_state(self, request: Any) -> RequestState:
        """Return the state of a live `request`, made on first sight."""
        state = self.requests.get(request.request_id)
        if state is None:
            state = self._begin(request)
            self.requests[request.request_id] = state
            if len(self.requests) > MAX_REQUESTS:
                self.requests.popitem(last=False)
        return state

    def _begin(self, request: Any) -> RequestState:
        key = self.fingerprint_key
        items = sorted(
            (feature.mm_position.offset, str(feature.identifier).encode())
            for feature in getattr(request, "mm_features", None) or ()
        )
        embedded = getattr(request, "prompt_embeds", None) is not None
        lora, salt = lora_parts(request), salt_parts(request)
        session = getattr(request, "session_id", None)
        return RequestState(
            chain=None if embedded else Chain(self.printer, self.hash_block, self.lookahead, items),
            tokens=request.all_token_ids,
            key=digest(key, *lora, *salt) if lora or salt else b"",
            lora=digest(key, *lora) if lora else b"",
            salt=digest(key, *salt) if salt else b"",
            session=digest(key, b"session", str(session).encode()) if session else b"",
            items=[(offset, digest(key, b"item", identifier)) for offset, identifier in items],
        )


@dataclass
class Worker:
    """A worker process, or the worker part of one, as the sidecar is told of it."""

    handle: int
    attributes: dict[str, Any]


class Cached(Protocol):
    """The keys in a pool's cache: which, and how many."""

    def __contains__(self, key: object, /) -> bool: ...

    def __len__(self) -> int: ...


class _Asked:
    """The keys in a pool's cache, where vLLM keeps them in a way that is not known."""

    def __init__(self, cache: Any) -> None:
        self._get = cache.get_one_block

    def __contains__(self, key: object, /) -> bool:
        return self._get(key) is not None

    def __len__(self) -> int:
        return 0  # not known: whoever compares it before and after sees no difference, and asks for each key


def attach(
    scheduler: Any, configured_replica_id: str | None, fingerprint_key: bytes, key_id: str, printer: Printer
) -> Replica:
    """Make `scheduler` a replica: manager, pool and queue get the mark by which the hooks know that it is ours."""
    attributes = settings.replica_attributes(scheduler, configured_replica_id, key_id)
    manager = scheduler.kv_cache_manager
    pool = manager.coordinator.block_pool
    cache = pool.cached_block_hash_to_block
    replica = Replica(
        handle=next(_handles),
        id=attributes[names.REPLICA_ID],
        attributes=attributes,
        alignment=attributes[names.HIT_ALIGNMENT],
        hash_block=attributes[names.HASH_BLOCK_SIZE],
        lookahead=attributes[names.HASH_LOOKAHEAD_TOKENS],
        block_sizes=attributes[names.GROUPS_BLOCK_SIZE],
        drops=attributes[names.GROUPS_DROPS],
        partial_hits=attributes[names.PARTIAL_HITS],
        fingerprint_key=fingerprint_key,
        printer=printer,
        pool=pool,
        # One block is the null block.
        usable_blocks=max(attributes[names.NUM_BLOCKS] - 1, 1),
        cached_keys=_cached_keys(cache),
        keys_of=reader(type(pool.null_block), "block_hash"),
        key_suffixes=_key_suffixes(len(attributes[names.GROUPS_BLOCK_SIZE])),
        group_of=find_function("vllm.v1.core.kv_cache_utils", "get_group_id"),
        request_of=_request_finder(scheduler),
        keys=KeyTable(attributes[names.NUM_BLOCKS] + 1),
    )
    pools = {id(m.block_pool): m.block_pool for m in manager.coordinator.single_type_managers}
    for owner in (scheduler, manager, manager.coordinator, pool, *pools.values()):
        setattr(owner, ATTRIBUTE, replica)
    for each in (pool, *pools.values()):
        setattr(each.free_block_queue, ATTRIBUTE, replica)
    return replica


def employ(worker: Any, replica_id: str) -> Worker:
    """Make `worker` known as one of the replica whose steps it runs."""
    known = Worker(next(_handles), settings.worker_attributes(worker, replica_id))
    setattr(worker, ATTRIBUTE, known)
    return known


def _cached_keys(cache: Any) -> Cached:
    inner = getattr(cache, "_cache", None)
    return inner if isinstance(inner, dict) else _Asked(cache)


def _key_suffixes(groups: int) -> list[bytes]:
    """Return what a group's keys have behind the hash of the block.

    Raises:
        BindingError: this vLLM makes its keys in another way.

    """
    make = find_function("vllm.v1.core.kv_cache_utils", "make_block_hash_with_group_id")
    suffixes = [bytes(make(b"", group)) for group in range(groups)]
    if any(make(b"hash", group) != b"hash" + suffix for group, suffix in enumerate(suffixes)):
        raise BindingError("vLLM's keys are not a block's hash with its group behind it")
    return suffixes


def _request_finder(scheduler: Any) -> Callable[[Any], Any]:
    """Return a function that finds a waiting request by its list of block hashes, the very object."""
    queues = [queue for name in ("waiting", "skipped_waiting") if (queue := getattr(scheduler, name, None)) is not None]

    def find(hashes: Any) -> Any:
        heads = (queue.peek_request() for queue in queues if queue)
        everywhere = itertools.chain(heads, scheduler.requests.values())
        return next((request for request in everywhere if request.block_hashes is hashes), None)

    return find


def lora_parts(request: Any) -> list[bytes]:
    """Return what names the request's LoRA adapter, empty where it has none."""
    lora = getattr(request, "lora_request", None)
    return [b"lora", str(lora.lora_name).encode(), str(lora.lora_path).encode()] if lora else []


def salt_parts(request: Any) -> list[bytes]:
    """Return the request's cache salt, empty where it has none."""
    salt = getattr(request, "cache_salt", None)
    return [b"salt", str(salt).encode()] if salt else []
