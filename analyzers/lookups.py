"""Every lookup of a capture, read before the replay: its prompt, and what earlier requests had of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from analyzers.events import LOOKUP, STORE, Timeline, in_order, of_kind, rows_of
from analyzers.prompts import Kind, Prompt, PromptBook, kind_of
from analyzers.seen import Acts, Before, Name
from analyzers.settings import Settings
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_count, common_mark

_KEPT = (
    "life", "start", "span_id", "request_id", "prompt_tokens", "hit_tokens", "admitted", "admitted_tokens", "attempts",
    "skipped", "discarded_tokens", "external_tokens", "lora", "salt", "items",
)  # fmt: skip
"""The columns of a lookup that are of use after it."""
_READ = (
    "request_id", "hit_tokens", "prompt_tokens", "values", "hit_fingerprint", "ladder", "common", "prompt_digest",
    "key", "lora", "salt", "plain",
)  # fmt: skip
"""Those that name its prompt."""
_STORED = ("request_id", "first", "values")


class Lookup(NamedTuple):
    """A lookup: its `row` as it is kept, `limit`, the longest hit that vLLM allowed (tokens), and its prompt."""

    row: Mapping[str, Any]
    limit: int
    connector: bool
    prompt: Prompt
    before: Before


def lookups_of(line: Timeline, given: list[pl.DataFrame], settings: Sequence[Settings]) -> Iterator[Lookup]:
    """Return the lookups of a timeline, in time.

    Args:
        line: the timeline.
        given: its `Capture.lookups`, which is taken out: what names the prompts is gone once they are read.
        settings: by life.

    """
    frame = given.pop()
    acts = Acts(keyed=any(frame[column].bin.size().max() for column in ("key", "plain")))
    prompts = _Reader(settings, acts).read(line, frame)
    rows = _rows(frame.select(*_KEPT, "max_hit_tokens", "connector"), of_kind(line, LOOKUP))
    del frame
    return _lookups(rows, prompts, acts.before())


def _lookups(rows: Iterator[tuple[Any, ...]], prompts: list[Prompt], befores: list[Before]) -> Iterator[Lookup]:
    for (*row, limit, connector), prompt, before in zip(rows, prompts, befores, strict=True):
        yield Lookup(dict(zip(_KEPT, row, strict=True)), limit, connector, prompt, before)


class _Reader:
    """Reads prompts one after the other: each is named from where the request hit on."""

    def __init__(self, settings: Sequence[Settings], acts: Acts) -> None:
        self._settings = settings
        self._acts = acts
        self._kinds = [kind_of(each) for each in settings]
        self._books: dict[Kind, PromptBook] = {kind: PromptBook() for kind in self._kinds}
        self._latest: dict[Name, Prompt] = {}
        self._extended: set[Name] = set()

    def read(self, line: Timeline, frame: pl.DataFrame) -> list[Prompt]:
        """Return the prompts of the lookups of a timeline, as they were when they were looked up."""
        naming = (pl.col("values").bin.size() > 0) & pl.col("first").is_not_null()
        names = line.stores.select(index=pl.int_range(pl.len(), dtype=pl.UInt32), naming=naming).filter("naming")
        of_stores = (pl.col("kind") == STORE) & pl.col("index").is_in(names["index"].implode())
        order = line.order.filter((pl.col("kind") == LOOKUP) | of_stores)
        lookups = _rows(frame.select(_READ), order.filter(kind=LOOKUP)["index"])
        stores = _rows(line.stores.select(_STORED), order.filter(kind=STORE)["index"])
        prompts: list[Prompt] = []
        for life, kind in rows_of(order.select("life", "kind")):
            if kind == LOOKUP:
                prompts.append(self._look_up(life, dict(zip(_READ, next(lookups), strict=True))))
            else:
                self._store(life, *next(stores))
        return prompts

    def _look_up(self, life: int, row: Mapping[str, Any]) -> Prompt:
        settings, name = self._settings[life], (life, row["request_id"])
        prompt = self._books[self._kinds[life]].read_chain(settings, row)
        self._acts.look_up(name, prompt, settings, row)
        # What `last_mark` asks for.
        hit = row["hit_tokens"]
        named = min(common_count(hit, prompt.tokens), len(row["common"] or b"") // FINGERPRINT_BYTES)
        prompt.ends = [common_mark(hit, place) for place in range(max(named - 2, 0), named)]
        self._latest[name] = prompt
        self._extended.discard(name)
        return prompt

    def _store(self, life: int, request: str, first: int, values: bytes) -> None:
        name = (life, request)
        prompt = self._latest.get(name, Prompt([]))
        if name not in self._extended:
            # At its lookup the request had not come this far.
            prompt = self._latest[name] = replace(prompt, chain=list(prompt.chain))
            self._extended.add(name)
        begin = self._books[self._kinds[life]].extend(prompt, self._settings[life], first, values)
        self._acts.store(name, prompt, begin)


def _rows(frame: pl.DataFrame, order: pl.Series) -> Iterator[tuple[Any, ...]]:
    return (row for part in in_order(frame, order) for row in rows_of(part))
