"""What the scanners share: functions compiled by numba, the words they know, and the tables that they fill.

A scanner looks at bytes in place and makes no object of them. It reads what the sidecar and the collector write, spans
of otel_cache with attributes of the registry, each of its type, and gives up on a record with anything else in it,
which is then read the exact way. Compiled once, the code is kept beside its module, or below numba's cache folder.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from otel_cache.semconv import names
from otel_cache.semconv.types import SPAN_TYPES

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

PADDING = bytes(64)
"""Stands before and behind what is scanned: the scanners look some bytes ahead and back."""
MISFIT = -1
"""Instead of a position: the record has something in it that a scanner does not read."""

SPAN_NAMES = (names.LOOKUP, names.GROUP_LOOKUP, names.STORE, names.EVICT, names.STEP, names.REQUEST, names.EXECUTE)
KEYS = tuple(SPAN_TYPES)
OTHER, INT, STRING, BOOLEAN, DOUBLE, INTS, STRINGS = range(7)
_KINDS = {"int": INT, "string": STRING, "boolean": BOOLEAN, "double": DOUBLE, "int[]": INTS, "string[]": STRINGS}
SLOTS = 1024

# Columns of `Tables.spans`, and how many there are. Identifiers are numbers, a trace's is two.
RECORD, RESOURCE, TRACE, TRACE_LOW, SPAN, PARENT, NAME, START, END = range(9)
SPAN_COLUMNS = 9
OWNER, KEY, ONE, TWO = range(4)
# Counters of what is in the tables.
SPANS, ATTRIBUTES, ELEMENTS, RESOURCES = range(4)


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; it runs without the interpreter's lock."""
    return _made(function, {})


def inner(function: Function) -> Function:
    """Compile a function that only compiled ones call, which takes half the time."""
    return _made(function, {"no_cpython_wrapper": True, "no_cfunc_wrapper": True})


def _made(function: Function, options: dict[str, bool]) -> Function:
    make = numba.njit(nogil=True, error_model="numpy", **options)
    made: Function = make(function)
    # Where no folder can be written to the code is made anew by every process.
    with contextlib.suppress(RuntimeError):
        made.enable_caching()  # type: ignore[attr-defined]
    return made


class Words(NamedTuple):
    """Keys of attributes and names of spans, to be found by their bytes; a word's number is its place in `WORDS`."""

    text: Bytes
    begins: Ints
    ends: Ints
    slots: Ints
    kinds: Ints


class Tables(NamedTuple):
    """What a scanner found. Values are numbers, or where they stand: the first byte's position and the length.

    Attributes:
        spans: a row per span.
        attributes: a row per attribute: its span, its word, and its value in two numbers: an integer, a boolean or a
            double's bits; a string's place; or an array's first element and length.
        elements: a row per element of arrays: its value.
        resources: the place of each resource: its first byte and the one behind its last.
        counts: how many spans, attributes, elements and resources there are.

    """

    spans: Ints
    attributes: Ints
    elements: Ints
    resources: Ints
    counts: Ints


WORDS = (*KEYS, *SPAN_NAMES)
_EVEN_BYTES, _EVEN_PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)


@intrinsic  # type: ignore[untyped-decorator]
def word_at(_: Any, data: Any, at: Any) -> Any:
    """Return the 8 bytes at a position as an unsigned number, the lowest first."""

    def load(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        place = builder.bitcast(builder.gep(array.data, [values[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, at), load


def number_of(text: bytes) -> np.uint64:
    """Return up to 8 bytes as `word_at` gives them, zeros behind them."""
    return np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little"))


def mask_of(length: int) -> np.uint64:
    """Return what leaves the first bytes of a number of 8."""
    return np.uint64((1 << 8 * length) - 1)


@inner
def swapped(word: Any) -> Any:
    """Return 8 bytes in the other order."""
    word = (word & _EVEN_BYTES) << np.uint64(8) | (word >> np.uint64(8)) & _EVEN_BYTES
    word = (word & _EVEN_PAIRS) << np.uint64(16) | (word >> np.uint64(16)) & _EVEN_PAIRS
    return word << np.uint64(32) | word >> np.uint64(32)


Name = tuple[np.uint64, np.uint64, np.uint64, int]
"""The first 8 bytes of a name, those in its middle, its last ones, and its length: at most 24."""


def name_of(text: str) -> Name:
    """Return a name as the scanners compare it."""
    written = text.encode()
    middle = max(0, len(written) // 2 - 4)
    return number_of(written[:8]), number_of(written[middle : middle + 8]), number_of(written[-8:]), len(written)


@inner
def is_name(data: Bytes, begin: int, end: int, name: Name) -> Any:
    """Whether a name stands between two positions."""
    first, middle, last, length = name
    if end - begin != length:
        return False
    if length < 8:
        return word_at(data, begin) & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)) == first
    return (
        word_at(data, begin) == first
        and word_at(data, begin + length // 2 - 4) == middle
        and word_at(data, end - 8) == last
    )


@compiled
def slot_of(data: Bytes, begin: int, end: int) -> Any:
    """Return where to look for a word first: by its last 8 bytes and its length."""
    mixed = (word_at(data, end - 8) ^ np.uint64(end - begin)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(54))


@inner
def find_word(data: Bytes, begin: int, end: int, words: Words) -> Any:
    """Return the number of the word that stands there, or -1."""
    if end - begin < 8:
        return -1
    slot = slot_of(data, begin, end)
    while words.slots[slot] >= 0:
        word = words.slots[slot]
        first = words.begins[word]
        if words.ends[word] - first == end - begin:
            same = word_at(data, end - 8) == word_at(words.text, words.ends[word] - 8)
            at = begin
            while same and at < end - 8:
                same = word_at(data, at) == word_at(words.text, first + at - begin)
                at += 8
            if same:
                return word
        slot = (slot + 1) & (SLOTS - 1)
    return -1


def make_words() -> Words:
    """Return the words of the registry."""
    text, begins, ends = bytearray(PADDING), [], []
    for word in WORDS:
        begins.append(len(text))
        text += word.encode()
        ends.append(len(text))
    data = np.frombuffer(bytes(text) + PADDING, np.uint8)
    slots = np.full(SLOTS, -1, np.int64)
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        # Words that are shorter than a machine word are not looked for: there are none.
        slot = int(slot_of(data, begin, end))
        while slots[slot] >= 0:
            slot = (slot + 1) & (SLOTS - 1)
        slots[slot] = number
    kinds = [_KINDS.get(SPAN_TYPES.get(word, ""), OTHER) for word in WORDS]
    return Words(data, np.array(begins), np.array(ends), slots, np.array(kinds, np.int64))


def make_tables(size: int) -> Tables:
    """Return empty tables for `size` bytes of input; memory that is not written to costs nothing."""
    spans, attributes, elements = size // 64 + 16, size // 16 + 16, size // 4 + 16
    return Tables(
        np.empty((spans, SPAN_COLUMNS), np.int64),
        np.empty((attributes, 4), np.int64),
        np.empty((elements, 2), np.int64),
        np.empty((spans, 2), np.int64),
        np.zeros(4, np.int64),
    )
