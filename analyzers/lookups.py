"""Every lookup of a capture, read before the replay: its prompt, and what earlier requests had of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import polars as pl

from analyzers.events import LOOKUP, STORE, Timeline, in_order, of_kind, rows_of
from analyzers.prompts import CHAIN_COLUMNS, Kind, Prompt, PromptBook, identities, kind_of
from analyzers.seen import Acts, Before, Name
from analyzers.settings import Settings

_READ = ("request_id", "common", "plain", *CHAIN_COLUMNS)
"""Columns of a lookup that name its prompt."""
_STORED = ("request_id", "first", "values")


class Looked(NamedTuple):
    """What is of use of a row of `Capture.lookups` after it: columns of it."""

    life: int
    start: int
    span_id: str
    request_id: str
    prompt_tokens: int
    hit_tokens: int
    admitted: bool
    admitted_tokens: int | None
    attempts: int
    skipped: bool
    discarded_tokens: int
    external_tokens: int
    lora: bytes
    salt: bytes
    items: str


class Lookup(NamedTuple):
    """A lookup: its `row` as it is kept, `limit`, the longest hit that vLLM allowed (tokens), and its prompt."""

    row: Looked
    limit: int
    connector: bool
    prompt: Prompt
    before: Before


# What `_make` does, without a frame of the interpreter for each.
_make_looked = partial(tuple.__new__, Looked)
_make_lookup = partial(tuple.__new__, Lookup)


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
    order = of_kind(line, LOOKUP)
    rows = map(_make_looked, _rows(frame.select(Looked._fields), order))
    more = frame.select("max_hit_tokens", "connector")[order]
    del frame
    return map(_make_lookup, zip(rows, more["max_hit_tokens"], more["connector"], prompts, acts.before(), strict=True))


class _Reader:
    """Reads prompts one after the other: each is named from where the request hit on."""

    def __init__(self, settings: Sequence[Settings], acts: Acts) -> None:
        self._settings = settings
        self._acts = acts
        self._kinds = [kind_of(each) for each in settings]
        self._books: dict[Kind, PromptBook] = {}
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
        hits = frame.filter(pl.col("hit_fingerprint").bin.size() > 0).select("hit_fingerprint", "key").unique()
        known = {each for fingerprint, key in hits.iter_rows() for each in identities(fingerprint, key or b"")[:1]}
        self._books = {kind: PromptBook(known) for kind in self._kinds}
        prompts: list[Prompt] = []
        for life, kind in rows_of(order.select("life", "kind")):
            if kind == LOOKUP:
                prompts.append(self._look_up(life, *next(lookups)))
            else:
                self._store(life, *next(stores))
        return prompts

    def _look_up(
        self, life: int, request: str, common: bytes | None, plain: bytes | None, hit: int, tokens: int, *named: Any
    ) -> Prompt:
        settings, name = self._settings[life], (life, request)
        prompt = self._books[self._kinds[life]].read_chain(settings, hit, tokens, *named)
        prompt.after = hit
        prompt.marks = self._acts.look_up(name, prompt, settings, hit, common or b"", plain or b"")
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
    return chain.from_iterable(map(rows_of, in_order(frame, order)))
