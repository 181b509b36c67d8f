"""Typed columns to the rows of the capture's frames, all spans of a name at once.

Each table has a condition that spans without any fault fulfil. Only those become rows here; whatever does not fulfil it
goes to `analyzers.readers.rows`, span by span, which knows every fault by name and says it.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import polars as pl

from analyzers.readers import rows, schemas
from analyzers.readers.attributes import MAX_I32, count_positions
from analyzers.readers.columns import DTYPES, ODD
from analyzers.readers.rows import Row
from analyzers.readers.spans import FlatSpan
from analyzers.readers.tally import SpanError
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv import names

_SIMPLE = r"^(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?$"
"""Positions without runs of them, none out of range."""
_SIMPLE_BYTES = 1 << 20
_GROUPS = pl.col(names.GROUP_IDS)
_ROW = "row"
_NO_BYTES = pl.lit(b"", dtype=pl.Binary)


class Table(NamedTuple):
    """How the spans of one name become rows.

    Attributes:
        schema: columns of the frame.
        clean: takes spans, all attributes as columns, and says which of them have no fault, one boolean each.
        make: makes rows of those, with the columns of `schemas.of_rows`.
        exact: makes rows of any span, with those of `schemas.of_exact_rows`, or says what is wrong with it.

    """

    schema: schemas.Schema
    clean: Callable[[pl.DataFrame], pl.Expr]
    make: Callable[[pl.DataFrame], pl.DataFrame]
    exact: Callable[[FlatSpan], list[Row]]


def with_all_columns(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with a column for each attribute of the registry, and `odd`."""
    absent = {name: dtype for name, dtype in DTYPES.items() if name not in spans.columns}
    odd = {} if ODD in spans.columns else {ODD: pl.String()}
    return spans.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in {**absent, **odd}.items())


def _all(*conditions: pl.Expr) -> pl.Expr:
    return reduce(and_, conditions)


def _identified() -> pl.Expr:
    """The conditions of all tables: identifiers and times are right, and no attribute has another type."""

    times = (pl.col("start") >= 0) & (pl.col("end") >= 0)
    counts = (names.MISSING_RECORDS, names.EVIDENCE_NUMBER, names.SAMPLING_DROPPED, names.EXPORT_DROPPED)
    return _all(
        reduce(or_, map(pl.col, schemas.TRACE)) != 0, pl.col(schemas.SPAN) != 0, pl.col(schemas.PARENT).is_not_null(),
        times, pl.col(ODD).is_null(),
        *(_count_or_none(name) for name in (names.RECORD_SEQUENCE, *counts)),
    )  # fmt: skip


def _count(name: str) -> pl.Expr:
    return pl.col(name).is_not_null() & (pl.col(name) >= 0)


def _count_or_none(name: str) -> pl.Expr:
    return pl.col(name).is_null() | (pl.col(name) >= 0)


def _seconds_or_none(name: str) -> pl.Expr:
    return pl.col(name).is_null() | (pl.col(name).is_finite() & (pl.col(name) >= 0))


def _counts(name: str, largest: int | None = None) -> pl.Expr:
    low = pl.col(name).list.min().fill_null(0) >= 0
    return low if largest is None else low & (pl.col(name).list.max().fill_null(0) <= largest)


def _length(name: str) -> pl.Expr:
    return pl.col(name).list.len().fill_null(0)


def _parallel(name: str) -> pl.Expr:
    """Whether there is an entry for each group, or none at all."""
    return (_length(name) == 0) | (_length(name) == _GROUPS.list.len())


def _group_ids() -> pl.Expr:
    return _all(
        _length(names.GROUP_IDS) > 0, _counts(names.GROUP_IDS, MAX_I32), _GROUPS.list.n_unique() == _GROUPS.list.len()
    )


def _decoded(column: pl.Expr) -> pl.Expr:
    return column.str.decode("base64", strict=False)


def _whole(column: pl.Expr) -> pl.Expr:
    """Whether base64 stands for a whole number of fingerprints."""
    return (_decoded(column).bin.size() % FINGERPRINT_BYTES == 0).fill_null(False)


def _fingerprints_right(name: str) -> pl.Expr:
    if isinstance(DTYPES[name], pl.List):
        return pl.col(name).is_null() | pl.col(name).list.eval(_whole(pl.element())).list.all()
    return pl.col(name).is_null() | _whole(pl.col(name))


def _fingerprints(spans: pl.DataFrame, name: str) -> pl.Expr:
    if not isinstance(DTYPES[name], pl.List):
        return _binary(name)
    # Where no part but the last ends with padding, all are the base64 of the whole.
    whole = spans.select(_decoded(pl.col(name).list.join(""))).to_series()
    if whole.null_count() == spans[name].null_count():
        return pl.lit(whole).fill_null(_NO_BYTES)
    parts = pl.col(name).list.eval(_decoded(pl.element()).bin.encode("hex"))
    return parts.list.join("").str.decode("hex").fill_null(_NO_BYTES)


def _binary_right(name: str) -> pl.Expr:
    return pl.col(name).is_null() | _decoded(pl.col(name)).is_not_null()


def _binary(name: str) -> pl.Expr:
    return _decoded(pl.col(name)).fill_null(_NO_BYTES)


def _shared(schema: schemas.Schema) -> list[pl.Expr]:
    """The columns that all frames have, and those that tell the rows apart."""
    apart = schemas.of_rows(schema).keys() - schema.keys()
    return [
        *map(pl.col, sorted(apart)),
        pl.col("life"),
        pl.col(names.RECORD_SEQUENCE).alias("sequence"),
        pl.col(names.EVIDENCE_NUMBER).alias("number"),
        pl.col(names.MISSING_RECORDS).fill_null(0).alias("missing"),
        pl.col("start"),
        pl.max_horizontal("start", "end").alias("end"),
    ]


def _named(columns: dict[str, pl.Expr]) -> list[pl.Expr]:
    return [each.alias(name) for name, each in columns.items()]


def _bad_positions(spans: pl.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the positions in list columns that are none."""
    different = pl.concat([spans[each].explode().drop_nulls().rename("positions") for each in columns]).unique()
    simple = different.str.contains(_SIMPLE) & (different.str.len_bytes() < _SIMPLE_BYTES)
    return [each for each in different.filter(~simple) if _number_of(each) is None]


def _number_of(positions: str) -> int | None:
    try:
        return count_positions(positions) if positions else 0
    except SpanError:
        return None


_FINGERPRINTS = (
    names.FINGERPRINT_VALUES, names.FINGERPRINT_HIT, names.FINGERPRINT_LADDER, names.FINGERPRINT_COMMON,
    names.FINGERPRINT_PROMPT, names.FINGERPRINT_PLAIN,
)  # fmt: skip
_KEYS = (names.KEY_DIGEST, names.KEY_LORA, names.KEY_SALT)


def _clean_lookups(spans: pl.DataFrame) -> pl.Expr:
    prompt, hit = pl.col(names.LOOKUP_PROMPT_TOKENS), pl.col(names.LOOKUP_HIT_TOKENS)
    optional = (
        names.LOOKUP_MAX_HIT_TOKENS, names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS, names.LOOKUP_ATTEMPTS,
        names.LOOKUP_ADMITTED_TOKENS, names.FINGERPRINT_FIRST, names.LOOKUP_EXTERNAL_TOKENS,
        names.LOOKUP_DISCARDED_TOKENS,
    )  # fmt: skip
    return _all(
        _identified(), _count(names.RECORD_SEQUENCE), pl.col(names.REQUEST_ID).is_not_null(),
        _count(names.LOOKUP_PROMPT_TOKENS), _count(names.LOOKUP_HIT_TOKENS), prompt <= MAX_I32, hit <= prompt,
        *map(_count_or_none, optional), *map(_fingerprints_right, _FINGERPRINTS), *map(_binary_right, _KEYS),
        # Lookups with multimodal items are few.
        _length(names.KEY_ITEM_DIGESTS) == 0, _length(names.KEY_ITEM_OFFSETS) == 0,
    )  # fmt: skip


def _make_lookups(spans: pl.DataFrame) -> pl.DataFrame:
    columns = {
        "request_id": pl.col(names.REQUEST_ID),
        "prompt_tokens": pl.col(names.LOOKUP_PROMPT_TOKENS),
        "hit_tokens": pl.col(names.LOOKUP_HIT_TOKENS),
        "max_hit_tokens": pl.col(names.LOOKUP_MAX_HIT_TOKENS).fill_null(
            pl.max_horizontal(pl.col(names.LOOKUP_PROMPT_TOKENS) - 1, 0)
        ),
        "uncached_common_prefix_tokens": pl.col(names.LOOKUP_UNCACHED_COMMON_PREFIX_TOKENS).fill_null(0),
        "attempts": pl.col(names.LOOKUP_ATTEMPTS).fill_null(1),
        "admitted_tokens": pl.col(names.LOOKUP_ADMITTED_TOKENS),
        "admitted": pl.col(names.LOOKUP_ADMITTED).fill_null(False),
        "skipped": pl.col(names.LOOKUP_SKIPPED).fill_null(False),
        "first": pl.col(names.FINGERPRINT_FIRST),
        "values": _fingerprints(spans, names.FINGERPRINT_VALUES),
        "hit_fingerprint": _fingerprints(spans, names.FINGERPRINT_HIT),
        "ladder": _fingerprints(spans, names.FINGERPRINT_LADDER),
        "common": _fingerprints(spans, names.FINGERPRINT_COMMON),
        "prompt_digest": _fingerprints(spans, names.FINGERPRINT_PROMPT),
        "plain": _fingerprints(spans, names.FINGERPRINT_PLAIN),
        "key": _binary(names.KEY_DIGEST),
        "lora": _binary(names.KEY_LORA),
        "salt": _binary(names.KEY_SALT),
        "items": pl.lit(""),
        "external_tokens": pl.col(names.LOOKUP_EXTERNAL_TOKENS).fill_null(0),
        "discarded_tokens": pl.col(names.LOOKUP_DISCARDED_TOKENS).fill_null(0),
        "connector": pl.col(names.LOOKUP_CONNECTOR).fill_null(False),
    }
    return spans.select(*_shared(schemas.LOOKUPS), *_named(columns))


_PASSES = {
    "asked_tokens": names.GROUP_PASS_ASKED,
    "pass_hit_tokens": names.GROUP_PASS_HIT,
    "dropped_tokens": names.GROUP_PASS_DROPPED,
    "alignment": names.GROUP_PASS_ALIGNMENT,
}


def _clean_groups(spans: pl.DataFrame) -> pl.Expr:
    first, *others = map(_length, _PASSES.values())
    return _all(
        _identified(), _group_ids(), *(first == other for other in others), *map(_counts, _PASSES.values()),
        _count(names.GROUP_BLOCK_SIZE), pl.col(names.GROUP_BLOCK_SIZE) > 0, pl.col(names.GROUP_KIND).is_not_null(),
        _count(names.GROUP_HIT_TOKENS), _count_or_none(names.GROUP_STORED_BELOW),
        _count_or_none(names.GROUP_STORED_ABOVE),
    )  # fmt: skip


def _make_groups(spans: pl.DataFrame) -> pl.DataFrame:
    columns = {
        "group": _GROUPS.cast(pl.List(pl.Int32)),
        "kind": pl.col(names.GROUP_KIND),
        "block_size": pl.col(names.GROUP_BLOCK_SIZE),
        "hit_tokens": pl.col(names.GROUP_HIT_TOKENS),
        "stored_below": pl.col(names.GROUP_STORED_BELOW),
        "stored_above": pl.col(names.GROUP_STORED_ABOVE),
        **{column: pl.col(name).fill_null(pl.lit([], dtype=pl.List(pl.Int64))) for column, name in _PASSES.items()},
    }
    return spans.select(*_shared(schemas.GROUPS), *_named(columns)).explode("group")


_POSITIONS = {
    "stored": names.STORE_STORED,
    "masked": names.STORE_MASKED,
    "not_materialized": names.STORE_NOT_MATERIALIZED,
    "wanted": names.STORE_WANTED,
}


def _clean_stores(spans: pl.DataFrame) -> pl.Expr:
    bad = _bad_positions(spans, list(_POSITIONS.values()))
    right = [~pl.col(name).list.eval(pl.element().is_in(bad)).list.any() for name in _POSITIONS.values()]
    required = (names.STORE_STORED, names.STORE_MASKED, names.STORE_NOT_MATERIALIZED)
    return _all(
        _identified(), _count(names.RECORD_SEQUENCE), _group_ids(), *(pl.col(name).is_not_null() for name in required),
        *map(_parallel, _POSITIONS.values()), pl.col(names.REQUEST_ID).is_not_null(),
        pl.col(names.STORE_ORIGIN).is_not_null(), _count_or_none(names.STORE_CHUNK_START),
        _count_or_none(names.STORE_CHUNK_END), _count_or_none(names.FINGERPRINT_FIRST),
        _fingerprints_right(names.FINGERPRINT_VALUES), *(right if bad else ()),
    )  # fmt: skip


def _each_group(name: str) -> pl.Expr:
    """A list with an entry per group, empty strings where there was none."""
    empty = pl.lit("").repeat_by(_GROUPS.list.len())
    return pl.when(_length(name) == 0).then(empty).otherwise(pl.col(name))


def _make_stores(spans: pl.DataFrame) -> pl.DataFrame:
    columns = {
        "request_id": pl.col(names.REQUEST_ID),
        "origin": pl.col(names.STORE_ORIGIN),
        "chunk_start": pl.col(names.STORE_CHUNK_START),
        "chunk_end": pl.col(names.STORE_CHUNK_END),
        "group": _GROUPS.cast(pl.List(pl.Int32)),
        **{column: _each_group(name) for column, name in _POSITIONS.items()},
        "first": pl.col(names.FINGERPRINT_FIRST),
        "values": _fingerprints(spans, names.FINGERPRINT_VALUES),
    }
    made = spans.select(*_shared(schemas.STORES), *_named(columns)).explode("group", *_POSITIONS)
    # It stands on a span's first row alone, so that a frame's sum is right.
    first = pl.col(schemas.AT).ne_missing(pl.col(schemas.AT).shift())
    return made.with_columns(pl.when(first).then("missing").otherwise(0).alias("missing"))


_EVICTED = {
    "positions": names.EVICT_POSITIONS,
    "fingerprints": names.EVICT_FINGERPRINTS,
    "keys": names.EVICT_KEYS,
    "evictor_groups": names.EVICT_EVICTOR_GROUPS,
}


def _gone(spans: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each group that lost keys, with how many blocks it lost; `row` is that of the span."""
    columns = {
        "group": _GROUPS.cast(pl.List(pl.Int32)),
        "blocks": pl.col(names.EVICT_BLOCKS),
        "index": pl.int_ranges(_GROUPS.list.len()),
        **{column: _each_group(name) for column, name in _EVICTED.items()},
    }
    gone = spans.select(_ROW, *_named(columns)).explode("group", "index", *_EVICTED)
    different = gone["positions"].unique()
    counts = pl.DataFrame(
        {"positions": different, "count": pl.Series([_number_of(each) for each in different], dtype=pl.Int64)}
    )
    return gone.join(counts, on="positions", how="left", maintain_order="left")


def _clean_evicts(spans: pl.DataFrame) -> pl.Expr:
    least = _all(
        _identified(), _count(names.RECORD_SEQUENCE), _group_ids(), *map(_parallel, _EVICTED.values()),
        _parallel(names.EVICT_BLOCKS), _counts(names.EVICT_BLOCKS), _counts(names.EVICT_AGE),
        ~pl.col(names.EVICT_RESET).fill_null(False),
    )  # fmt: skip
    gone = _gone(spans.with_row_index(_ROW).filter(least))
    given, fingerprints = pl.col("blocks").list.get(pl.col("index"), null_on_oob=True), pl.col("fingerprints")
    takers = pl.col("evictor_groups")
    right = _all(
        pl.col("count").is_not_null(), (given == pl.col("count")).fill_null(True),
        (fingerprints == "") | (_decoded(fingerprints).bin.size() == FINGERPRINT_BYTES * pl.col("count")),
        # Blocks with keys of their own are few.
        pl.col("keys").str.strip_chars(",") == "",
        (takers == "")
        | takers.str.contains("^[0-9]*(,[0-9]*)*$")
        & ((takers.str.count_matches(",") == 0) | (takers.str.count_matches(",") + 1 == pl.col("count"))),
    )  # fmt: skip
    wrong = gone.filter(~right.fill_null(False))[_ROW].unique().implode()
    return least & ~pl.int_range(pl.len(), dtype=pl.UInt32).is_in(wrong)


def _make_evicts(spans: pl.DataFrame) -> pl.DataFrame:
    spans = spans.with_row_index(_ROW)
    aged = _length(names.EVICT_AGE) == _GROUPS.list.len()
    ages = pl.col(names.EVICT_AGE)
    of_span = {
        "ages": pl.when(aged).then(ages).otherwise(pl.lit([], dtype=pl.List(pl.Int64))),
        "evictor_request_id": pl.col(names.EVICT_EVICTOR_REQUEST_ID).fill_null(""),
        "reason": pl.col(names.EVICT_REASON).fill_null(""),
        "reset": pl.lit(False),
    }
    gone = _gone(spans).drop("blocks", "count")
    joined = gone.join(
        spans.select(_ROW, *_shared(schemas.EVICTS), *_named(of_span)), on=_ROW, how="left", maintain_order="left"
    )
    return joined.with_columns(
        _decoded(pl.col("fingerprints")).alias("fingerprints"),
        _NO_BYTES.alias("keys"),
        pl.col("ages").list.slice(pl.col("index"), 1),
    )


def _clean_steps(spans: pl.DataFrame) -> pl.Expr:
    return _all(
        _identified(), _count(names.RECORD_SEQUENCE), _count(names.STEP_INDEX),
        *map(_count_or_none, _STEP_COUNTS.values()), *map(_seconds_or_none, _STEP_SECONDS.values()),
    )  # fmt: skip


_STEP_COUNTS = {
    "prefill_tokens": names.STEP_PREFILL_TOKENS,
    "decode_tokens": names.STEP_DECODE_TOKENS,
    "running_requests": names.STEP_RUNNING_REQUESTS,
    "waiting_requests": names.STEP_WAITING_REQUESTS,
    "preempted_requests": names.STEP_PREEMPTED_REQUESTS,
}
_STEP_SECONDS = {
    "pool_usage": names.STEP_POOL_USAGE,
    "schedule_duration": names.STEP_SCHEDULE_DURATION,
    "execute_duration": names.STEP_EXECUTE_DURATION,
}


def _make_steps(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.select(
        *_shared(schemas.STEPS),
        pl.col(names.STEP_INDEX).alias("index"),
        *(pl.col(name).fill_null(0).alias(column) for column, name in _STEP_COUNTS.items()),
        *(pl.col(name).alias(column) for column, name in _STEP_SECONDS.items()),
    )


_REQUEST_COUNTS = {
    "prompt_tokens": names.REQUEST_PROMPT_TOKENS,
    "hit_tokens": names.REQUEST_HIT_TOKENS,
    "output_tokens": names.REQUEST_OUTPUT_TOKENS,
    "cache_read_tokens": names.USAGE_CACHE_READ_TOKENS,
    "preemptions": names.REQUEST_PREEMPTIONS,
    "drafted_tokens": names.REQUEST_DRAFTED_TOKENS,
    "accepted_tokens": names.REQUEST_ACCEPTED_TOKENS,
}
_REQUEST_SECONDS = {
    "queue_duration": names.REQUEST_QUEUE_DURATION,
    "time_to_first_token": names.REQUEST_TIME_TO_FIRST_TOKEN,
}


def _clean_requests(spans: pl.DataFrame) -> pl.Expr:
    return _all(
        _identified(), pl.col(names.REQUEST_ID).is_not_null(), _binary_right(names.REQUEST_SESSION_DIGEST),
        *map(_count_or_none, _REQUEST_COUNTS.values()), *map(_seconds_or_none, _REQUEST_SECONDS.values()),
    )  # fmt: skip


def _make_requests(spans: pl.DataFrame) -> pl.DataFrame:
    def text(name: str) -> pl.Expr:
        return pl.when(pl.col(name) != "").then(pl.col(name))

    return spans.select(
        *_shared(schemas.REQUESTS),
        pl.col(names.REQUEST_ID).alias("request_id"),
        text(names.REQUEST_EXTERNAL_ID).alias("external_id"),
        _binary(names.REQUEST_SESSION_DIGEST).alias("session"),
        *(pl.col(name).alias(column) for column, name in _REQUEST_COUNTS.items()),
        *(pl.col(name).alias(column) for column, name in _REQUEST_SECONDS.items()),
        text(names.REQUEST_FINISH_REASON).alias("finish_reason"),
    ).with_columns(pl.col("preemptions").fill_null(0))


TABLES = {
    names.LOOKUP: Table(schemas.LOOKUPS, _clean_lookups, _make_lookups, rows.lookup_rows),
    names.GROUP_LOOKUP: Table(schemas.GROUPS, _clean_groups, _make_groups, rows.group_rows),
    names.STORE: Table(schemas.STORES, _clean_stores, _make_stores, rows.store_rows),
    names.EVICT: Table(schemas.EVICTS, _clean_evicts, _make_evicts, rows.evict_rows),
    names.STEP: Table(schemas.STEPS, _clean_steps, _make_steps, rows.step_rows),
    names.REQUEST: Table(schemas.REQUESTS, _clean_requests, _make_requests, rows.request_rows),
}
"""By the name of the spans."""
