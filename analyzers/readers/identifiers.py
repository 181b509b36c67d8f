"""Identifiers of traces and spans: numbers of 64 bits while reading, lower-case hexadecimal text for users.

A trace has two numbers, the first half of its identifier first; a span has one. 0 stands for none.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.uint64]
TRACE_DIGITS, SPAN_DIGITS = 32, 16
_DIGITS = 16


def numbers_of(texts: Sequence[str], digits: int) -> Numbers:
    """Return the numbers of identifiers that are written in hexadecimal: a row each, a column for 16 digits.

    Raises:
        TypeError, ValueError: one of them has not so many digits, or is none.

    """
    if set(map(len, texts)) - {digits}:
        raise ValueError("not an identifier")
    written = bytes.fromhex("".join(texts))
    if 2 * len(written) != digits * len(texts):
        raise ValueError("not an identifier")
    return np.frombuffer(written, ">u8").astype(np.uint64).reshape(-1, digits // _DIGITS)


def parents_of(texts: Sequence[str]) -> Numbers:
    """Return the numbers of parents' identifiers; those of roots may be empty. Raises what `numbers_of` does."""
    return numbers_of([each or "0" * SPAN_DIGITS for each in texts], SPAN_DIGITS)[:, 0]


def written(*words: pl.Series) -> pl.Series:
    """Return identifiers as text: "" where the numbers are 0."""
    numbers = np.stack([each.to_numpy() for each in words], axis=1)
    digits = pl.Series(numbers.astype(">u8").view(np.uint8)).arr.to_list().cast(pl.Binary).bin.encode("hex")
    none = pl.Series((numbers == 0).all(axis=1))
    return pl.select(pl.when(none).then(pl.lit("")).otherwise(digits)).to_series()


def numbers_in(column: str, words: int) -> list[pl.Expr]:
    """Return the numbers of identifiers in a column of text: 0 where it holds none."""
    decoded = pl.col(column).str.decode("hex", strict=False)
    whole = pl.when(decoded.bin.size() == 8 * words).then(decoded)
    return [
        whole.bin.slice(8 * word, 8).bin.reinterpret(dtype=pl.UInt64, endianness="big").fill_null(0)
        for word in range(words)
    ]
