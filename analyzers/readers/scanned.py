"""What a scanner found, to frames: Arrow's arrays over numpy's, which polars takes as they are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from analyzers.readers.columns import BASE
from analyzers.readers.compiled import (
    BOOLEAN,
    DOUBLE,
    END,
    INT,
    INTS,
    KEY,
    NAME,
    ONE,
    OWNER,
    PARENT,
    RECORD,
    RESOURCE,
    START,
    STRING,
    TRACE,
    TWO,
    WORDS,
    Bytes,
    Ints,
    Tables,
    Words,
    compiled,
)

Texts = Callable[[Ints, Ints, Any], Any]
"""Takes where strings begin, their lengths, and which are there (None: all); gives an Arrow array."""


@compiled
def _gather(data: Bytes, begins: Ints, offsets: Ints, into: Bytes) -> None:
    """Copy the strings that begin at `begins` one behind the other, each up to where the next one has to begin."""
    for row in range(len(begins)):
        at, first = begins[row], offsets[row]
        for each in range(offsets[row + 1] - first):
            into[first + each] = data[at + each]


@compiled
def _gather_rows(table: Ints, firsts: Ints, offsets: Ints, into: Ints) -> None:
    """Copy the rows of arrays' elements one behind the other."""
    for row in range(len(firsts)):
        first = offsets[row]
        for each in range(offsets[row + 1] - first):
            into[first + each, 0] = table[firsts[row] + each, 0]
            into[first + each, 1] = table[firsts[row] + each, 1]


def _offsets(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def texts_of(data: Bytes) -> Texts:
    """Return how Arrow's strings are made of their places in `data`."""

    def make(begins: Ints, lengths: Ints, valid: Any) -> Any:
        offsets = _offsets(lengths)
        text = np.empty(offsets[-1], np.uint8)
        _gather(data, begins, offsets, text)
        return pa.Array.from_buffers(pa.large_string(), len(begins), [valid, pa.py_buffer(offsets), pa.py_buffer(text)])

    return make


def frames(
    tables: Tables, words: Words, resources: Sequence[int], numbers: Sequence[int], data: Bytes, json: bool
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield a frame per name of spans.

    Args:
        tables: what was found.
        words: the words that it was found with.
        resources: the index in the batch of each resource.
        numbers: the number of each record.
        data: what was scanned.
        json: whether it was JSON: numbers with a point are text there.

    """
    count, attributes, elements, _ = tables.counts
    spans, found = tables.spans[:count], tables.attributes[:attributes]
    names = spans[:, NAME]
    column = (names[found[:, OWNER]] * len(WORDS) + found[:, KEY]).astype(np.int16)
    order = np.argsort(column, kind="stable")
    column = column[order]
    edges = np.flatnonzero(np.diff(column)) + 1
    segments = np.split(order, edges) if len(order) else []
    makers = _Makers(data, tables.elements[:elements], json)
    place = np.empty(count, np.int64)
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        place[rows] = np.arange(len(rows))
        made = makers.base(spans[rows], np.asarray(resources, np.int32), np.asarray(numbers, np.int64))
        for segment in segments:
            owner = found[segment[0], OWNER]
            if names[owner] == name:
                word = int(found[segment[0], KEY])
                values = found[segment]
                made[WORDS[word]] = makers.column(int(words.kinds[word]), values, place[values[:, OWNER]], len(rows))
        yield WORDS[name], makers.frame(made)


class _Makers:
    """Makes Arrow's arrays."""

    def __init__(self, data: Bytes, elements: Ints, json: bool) -> None:
        self._elements, self._json = elements, json
        self._texts = texts_of(data)

    def base(self, spans: Ints, resources: npt.NDArray[np.int32], numbers: Ints) -> dict[str, Any]:
        """Return the columns of `BASE`."""
        identifiers = np.ascontiguousarray(spans[:, TRACE : PARENT + 1].T).view(np.uint64)
        columns = (
            pa.array(resources[spans[:, RESOURCE]]),
            pa.array(numbers[spans[:, RECORD]]),
            *map(pa.array, identifiers),
            pa.array(spans[:, START]),
            pa.array(spans[:, END]),
        )
        return dict(zip(BASE, columns, strict=True))

    def column(self, kind: int, values: Ints, at: Ints, count: int) -> Any:
        """Return the column of an attribute: `values` in the rows `at`, null in the others."""
        one, two, valid = values[:, ONE], values[:, TWO], None
        if len(values) < count:
            spread = np.zeros((2, count), np.int64)
            spread[0, at] = one
            if kind not in (INT, BOOLEAN):
                spread[1, at] = two
            one, two = spread
            present = np.zeros(count, bool)
            present[at] = True
            valid = pa.py_buffer(np.packbits(present, bitorder="little"))
        if kind == INT:
            return pa.Array.from_buffers(pa.int64(), count, [valid, pa.py_buffer(np.ascontiguousarray(one))])
        if kind == BOOLEAN:
            bits = np.packbits(one != 0, bitorder="little")
            return pa.Array.from_buffers(pa.bool_(), count, [valid, pa.py_buffer(bits)])
        if kind == DOUBLE and not self._json:
            return pa.Array.from_buffers(pa.float64(), count, [valid, pa.py_buffer(np.ascontiguousarray(one))])
        if kind in (STRING, DOUBLE):
            text = self._texts(np.ascontiguousarray(one), two, valid)
            return text if kind == STRING else pl.from_arrow(text).cast(pl.Float64).to_arrow()
        offsets = _offsets(two)
        rows = np.empty((offsets[-1], 2), np.int64)
        _gather_rows(self._elements, np.ascontiguousarray(one), offsets, rows)
        if kind == INTS:
            values, each = pa.array(rows[:, 0]), pa.int64()
        else:
            values, each = self._texts(np.ascontiguousarray(rows[:, 0]), rows[:, 1], None), pa.large_string()
        return pa.Array.from_buffers(pa.large_list(each), count, [valid, pa.py_buffer(offsets)], children=[values])

    def frame(self, columns: dict[str, Any]) -> pl.DataFrame:
        """Return arrays as a frame."""
        frame = pl.from_arrow(pa.RecordBatch.from_pydict(columns))
        assert isinstance(frame, pl.DataFrame)
        return frame
