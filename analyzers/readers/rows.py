"""One flat span to the rows that it puts into the frames: what it must say is checked here, once.

A row is a tuple in the order of its schema. The first nine columns are those that all frames share.
"""

from typing import Any
from urllib.parse import urlsplit

from analyzers.readers.attributes import (
    MAX_I32,
    binary,
    count_positions,
    fingerprints,
    flag,
    integer,
    integer_or,
    integers,
    optional_integer,
    optional_seconds,
    parallel_texts,
    positions,
    text,
    text_or,
    whole_fingerprints,
)
from analyzers.readers.spans import FlatSpan
from analyzers.readers.tally import SpanError
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv import names

Row = tuple[Any, ...]
NO_GROUP = -1
NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)
REQUEST_IDS = ("gen_ai.request.id", names.REQUEST_ID, "gen_ai.response.id")
PROMPT_TOKENS = (names.USAGE_INPUT_TOKENS, "gen_ai.usage.prompt_tokens")
CACHE_READ_TOKENS = (
    names.USAGE_CACHE_READ_TOKENS,
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cache_read_tokens",
    "gen_ai.usage.cached_input_tokens",
    "gen_ai.usage.cached_tokens",
    "gen_ai.usage.prompt_tokens_details.cached_tokens",
)
"""The names under which other programs say how much of a prompt came from a cache, the newest first."""
ROUTER_BLOCKS = (
    ("llm_d.kv_cache.prefix_match.key_count", "llm_d.kv_cache.prefix_match.longest_chain"),
    ("llm_d.epp.producer.total_blocks", "llm_d.epp.producer.max_match_blocks"),
    ("llm_d.kv_cache.block_keys.count", "llm_d.kv_cache.blocks_found"),
)
"""A prompt's blocks as llm-d's router counts them, and how many it saw cached: the longest run on a replica, where it
says, before any that it found. Its index and its scorer say so each on a span of its own; the surest comes first."""
BACKEND_URL, ROUTING_LOGIC = "vllm.backend_url", "vllm.routing_logic"
"""Whom the production stack's router sent a request to, and by which of its routers."""
TOP_ENDPOINTS = "llm_d.epp.picker.top_endpoints"
"""llm-d's best endpoints for a request, the best first."""
URL, ADDRESS, PORT = "url.full", "server.address", "server.port"
"""Whom an HTTP client called: vLLM's own router and others say no more than that."""
MISSING = 3
"""Index of the shared column `missing`: it stands on a span's first row alone, so that a frame's sum is right."""


def _shared(span: FlatSpan, *, sequence_required: bool = True) -> Row:
    attributes = span.attributes
    return (
        span.life,
        (integer if sequence_required else optional_integer)(attributes, names.RECORD_SEQUENCE),
        optional_integer(attributes, names.EVIDENCE_NUMBER),
        integer_or(attributes, names.MISSING_RECORDS, 0),
        span.start,
        max(span.start, span.end),
        span.trace_id,
        span.span_id,
        span.parent_span_id,
    )


def _counted_once(rows: list[Row]) -> list[Row]:
    return [row if index == 0 else (*row[:MISSING], 0, *row[MISSING + 1 :]) for index, row in enumerate(rows)]


def _groups(attributes: dict[str, Any]) -> list[int]:
    groups = integers(attributes, names.GROUP_IDS, MAX_I32)
    if not groups:
        raise SpanError(f"{names.GROUP_IDS} is missing")
    if len(set(groups)) != len(groups):
        raise SpanError(f"{names.GROUP_IDS} names a group twice")
    return groups


def lookup_rows(span: FlatSpan) -> list[Row]:
    """Return the row of a lookup."""
    attributes = span.attributes
    prompt = integer(attributes, names.LOOKUP_PROMPT_TOKENS)
    hit = integer(attributes, names.LOOKUP_HIT_TOKENS)
    if prompt > MAX_I32:
        raise SpanError(f"{names.LOOKUP_PROMPT_TOKENS} is {prompt}, more than any prompt has")
    if hit > prompt:
        raise SpanError(f"{names.LOOKUP_HIT_TOKENS} is {hit}, more than the {prompt} tokens of the prompt")
    row = (
        *_shared(span),
        text(attributes, names.REQUEST_ID),
        prompt,
        hit,
        integer_or(attributes, names.LOOKUP_MAX_HIT_TOKENS, max(prompt - 1, 0)),
        integer_or(attributes, names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS, 0),
        integer_or(attributes, names.LOOKUP_ATTEMPTS, 1),
        optional_integer(attributes, names.LOOKUP_ADMITTED_TOKENS),
        flag(attributes, names.LOOKUP_ADMITTED),
        flag(attributes, names.LOOKUP_SKIPPED),
        optional_integer(attributes, names.FINGERPRINT_FIRST),
        fingerprints(attributes, names.FINGERPRINT_VALUES),
        fingerprints(attributes, names.FINGERPRINT_HIT),
        fingerprints(attributes, names.FINGERPRINT_LADDER),
        fingerprints(attributes, names.FINGERPRINT_COMMON),
        fingerprints(attributes, names.FINGERPRINT_PROMPT),
        fingerprints(attributes, names.FINGERPRINT_PLAIN),
        binary(attributes, names.KEY_DIGEST),
        binary(attributes, names.KEY_LORA),
        binary(attributes, names.KEY_SALT),
        _items(attributes),
        integer_or(attributes, names.LOOKUP_EXTERNAL_TOKENS, 0),
        integer_or(attributes, names.LOOKUP_DISCARDED_TOKENS, 0),
        flag(attributes, names.LOOKUP_CONNECTOR),
    )
    return [row]


def _items(attributes: dict[str, Any]) -> str:
    """Return the multimodal items as `offset:digest` separated by commas; "" where the prompt has none."""
    offsets = integers(attributes, names.KEY_ITEM_OFFSETS)
    digests = parallel_texts(attributes, names.KEY_ITEM_DIGESTS, len(offsets))
    return ",".join(f"{offset}:{digest}" for offset, digest in zip(offsets, digests, strict=True))


def group_rows(span: FlatSpan) -> list[Row]:
    """Return a row for each of the groups that were looked up together."""
    attributes = span.attributes
    passes = [
        integers(attributes, key)
        for key in (names.GROUP_PASS_ASKED, names.GROUP_PASS_HIT, names.GROUP_PASS_DROPPED, names.GROUP_PASS_ALIGNMENT)
    ]
    if len({len(each) for each in passes}) != 1:
        raise SpanError("its passes differ in number: " + ", ".join(str(len(each)) for each in passes))
    block_size = integer(attributes, names.GROUP_BLOCK_SIZE)
    if not block_size:
        raise SpanError(f"{names.GROUP_BLOCK_SIZE} is 0")
    # It may stand on the lookup alone, which the group's rows then take it from.
    shared = _shared(span, sequence_required=False)
    tail = (
        text(attributes, names.GROUP_KIND),
        block_size,
        integer(attributes, names.GROUP_HIT_TOKENS),
        optional_integer(attributes, names.GROUP_STORED_BELOW),
        optional_integer(attributes, names.GROUP_STORED_ABOVE),
        *passes,
    )
    return [(*shared, group, *tail) for group in _groups(attributes)]


def store_rows(span: FlatSpan) -> list[Row]:
    """Return a row for each group that stored, or refused to."""
    attributes = span.attributes
    groups = _groups(attributes)
    for name in (names.STORE_STORED, names.STORE_MASKED, names.STORE_NOT_MATERIALIZED):
        if name not in attributes:
            raise SpanError(f"{name} is missing")
    head = (
        *_shared(span),
        text(attributes, names.REQUEST_ID),
        text(attributes, names.STORE_ORIGIN),
        optional_integer(attributes, names.STORE_CHUNK_START),
        optional_integer(attributes, names.STORE_CHUNK_END),
    )
    tail = (
        optional_integer(attributes, names.FINGERPRINT_FIRST),
        fingerprints(attributes, names.FINGERPRINT_VALUES),
    )
    columns = zip(
        groups,
        positions(attributes, names.STORE_STORED, len(groups)),
        positions(attributes, names.STORE_MASKED, len(groups)),
        positions(attributes, names.STORE_NOT_MATERIALIZED, len(groups)),
        positions(attributes, names.STORE_WANTED, len(groups)),
        strict=True,
    )
    return _counted_once([(*head, *columns_of_group, *tail) for columns_of_group in columns])


def evict_rows(span: FlatSpan) -> list[Row]:
    """Return a row for each group that lost keys; one without a group for a reset, or for mere missing records."""
    attributes = span.attributes
    evictor = text_or(attributes, names.EVICT_EVICTOR_REQUEST_ID, "")
    reason = text_or(attributes, names.EVICT_REASON, "")
    reset = flag(attributes, names.EVICT_RESET)
    if not reset and not attributes.get(names.GROUP_IDS):
        # Nothing went: the span says, at the end of a connection, how many records never came.
        integer(attributes, names.MISSING_RECORDS)
        integer(attributes, names.EVIDENCE_NUMBER)
        shared = _shared(span, sequence_required=False)
    else:
        shared = _shared(span)
    if reset or not attributes.get(names.GROUP_IDS):
        return [(*shared, NO_GROUP, "", b"", b"", [], evictor, "", reason, reset)]
    groups = _groups(attributes)
    blocks = integers(attributes, names.EVICT_BLOCKS)
    ages = integers(attributes, names.EVICT_AGE)
    written = positions(attributes, names.EVICT_POSITIONS, len(groups))
    gone = parallel_texts(attributes, names.EVICT_FINGERPRINTS, len(groups))
    keys = parallel_texts(attributes, names.EVICT_KEYS, len(groups))
    takers = parallel_texts(attributes, names.EVICT_EVICTOR_GROUPS, len(groups))
    rows = []
    for index, group in enumerate(groups):
        count = count_positions(written[index])
        if blocks and (len(blocks) != len(groups) or blocks[index] != count):
            raise SpanError(f"{names.EVICT_BLOCKS} and {names.EVICT_POSITIONS} differ in number")
        values = whole_fingerprints(gone[index], names.EVICT_FINGERPRINTS)
        if values and len(values) != count * FINGERPRINT_BYTES:
            raise SpanError(f"{names.EVICT_FINGERPRINTS} and {names.EVICT_POSITIONS} differ in number")
        age = ages[index : index + 1] if len(ages) == len(groups) else []
        gone_of = (written[index], values, _keys(keys[index], count), age)
        rows.append((*shared, group, *gone_of, evictor, _takers(takers[index], count), reason, False))
    return rows


def _takers(written: str, count: int) -> str:
    """Return the groups that were given evicted blocks, checked: a number for each, or one for all, or nothing."""
    takers = written.split(",") if written else []
    if len(takers) not in (0, 1, count) or not all(not each or (each.isascii() and each.isdigit()) for each in takers):
        raise SpanError(f"{names.EVICT_EVICTOR_GROUPS} is not a group for each of {count} blocks")
    return written


def _keys(written: str, count: int) -> bytes:
    """Return the key digests of evicted blocks, 8 bytes each, zeros where a block has none; none where no block has."""
    if not written.strip(","):
        return b""
    digests = [whole_fingerprints(part, names.EVICT_KEYS) or NO_FINGERPRINT for part in written.split(",")]
    if len(digests) != count or any(len(digest) != FINGERPRINT_BYTES for digest in digests):
        raise SpanError(f"{names.EVICT_KEYS} and {names.EVICT_POSITIONS} differ in number")
    return b"".join(digests)


def step_rows(span: FlatSpan) -> list[Row]:
    """Return the row of a scheduler step."""
    attributes = span.attributes
    row = (
        *_shared(span),
        integer(attributes, names.STEP_INDEX),
        integer_or(attributes, names.STEP_PREFILL_TOKENS, 0),
        integer_or(attributes, names.STEP_DECODE_TOKENS, 0),
        integer_or(attributes, names.STEP_RUNNING_REQUESTS, 0),
        integer_or(attributes, names.STEP_WAITING_REQUESTS, 0),
        integer_or(attributes, names.STEP_PREEMPTED_REQUESTS, 0),
        optional_seconds(attributes, names.STEP_POOL_USAGE),
        optional_seconds(attributes, names.STEP_SCHEDULE_DURATION),
        optional_seconds(attributes, names.STEP_EXECUTE_DURATION),
    )
    return [row]


def request_rows(span: FlatSpan) -> list[Row]:
    """Return the row of a request's life; none where it does not say whose. The rest may be absent."""
    attributes = span.attributes
    if names.REQUEST_ID not in attributes:
        return []
    row = (
        *_shared(span, sequence_required=False),
        text(attributes, names.REQUEST_ID),
        text_or(attributes, names.REQUEST_EXTERNAL_ID, "") or None,
        binary(attributes, names.REQUEST_SESSION_DIGEST),
        optional_integer(attributes, names.REQUEST_PROMPT_TOKENS),
        optional_integer(attributes, names.REQUEST_HIT_TOKENS),
        optional_integer(attributes, names.REQUEST_OUTPUT_TOKENS),
        optional_integer(attributes, names.USAGE_CACHE_READ_TOKENS),
        optional_seconds(attributes, names.REQUEST_QUEUE_DURATION),
        optional_seconds(attributes, names.REQUEST_TIME_TO_FIRST_TOKEN),
        integer_or(attributes, names.REQUEST_PREEMPTIONS, 0),
        optional_integer(attributes, names.REQUEST_DRAFTED_TOKENS),
        optional_integer(attributes, names.REQUEST_ACCEPTED_TOKENS),
        text_or(attributes, names.REQUEST_FINISH_REASON, "") or None,
    )
    return [row]


def usage_rows(span: FlatSpan) -> list[Row]:
    """Return the row of another program's span that tells of a request's tokens, blocks or way; none where it does not.

    A span that only names whom it called says something of a request whose caller it is.
    """
    attributes = span.attributes

    def first(keys: tuple[str, ...], kind: type) -> Any:
        return next((attributes[key] for key in keys if type(attributes.get(key)) is kind), None)

    prompt, cached = first(PROMPT_TOKENS, int), first(CACHE_READ_TOKENS, int)
    seen = next((pair for pair in enumerate(ROUTER_BLOCKS) if _counts(attributes, *pair[1])), None)
    router = (None, None, None) if seen is None else (seen[0], *(attributes[key] for key in seen[1]))
    endpoint, called = _endpoint(attributes), _called(attributes)
    if prompt is None and cached is None and seen is None and endpoint is None and called is None:
        return []
    ids = (span.trace_id, span.span_id, span.parent_span_id, span.start, max(span.start, span.end), span.name)
    logic = first((ROUTING_LOGIC,), str)
    return [(*ids, first(REQUEST_IDS, str), prompt, cached, *router, endpoint, logic, called)]


def _counts(attributes: dict[str, Any], keys: str, blocks: str) -> bool:
    """Whether a router says how many blocks a prompt has, and how many of them it saw cached."""
    total, seen = attributes.get(keys), attributes.get(blocks)
    return type(total) is int and type(seen) is int and 0 <= seen <= total <= MAX_I32 and total > 0


def _endpoint(attributes: dict[str, Any]) -> str | None:
    """Return whom a router chose."""
    if type(url := attributes.get(BACKEND_URL)) is str and url:
        return url
    best = attributes.get(TOP_ENDPOINTS)
    return best[0] if isinstance(best, list) and best and type(best[0]) is str else None


def _called(attributes: dict[str, Any]) -> str | None:
    """Return whom a client called: host and port of the server."""
    host, port = attributes.get(ADDRESS), attributes.get(PORT)
    if type(host) is str and host:
        return f"{host}:{port}" if type(port) is int else host
    url = attributes.get(URL)
    return (urlsplit(url).netloc.rpartition("@")[2] or None) if type(url) is str else None
