"""Records of an input that is large enough for a scanner to frames; what a scanner does not read is given back."""

from collections.abc import Callable
from functools import cache

import numpy as np

from analyzers.readers import scan_json, scan_protobuf, scanned
from analyzers.readers.columns import BatchBuilder
from analyzers.readers.compiled import PADDING, Words, make_tables, make_words, name_of
from analyzers.readers.framing import Record
from analyzers.readers.tally import SpanError
from otel_cache.package import SCOPE

Resource = Callable[[bytes, BatchBuilder], int]
"""Takes a resource as it is written; its index in the batch. Raises SpanError where it is damaged."""
_END = b"\0"
"""Behind each record: no JSON goes on over it, and no Protobuf is read up to it."""


@cache
def _words() -> Words:
    return make_words()


def scan(records: list[Record], json: bool, resource: Resource, builder: BatchBuilder) -> list[Record]:
    """Give the spans in `records` to `builder`; return the records that have to be read another way.

    `records` is empty then: what they hold is in memory but once.
    """
    if not records:
        return []
    parts = [PADDING]
    for each in records:
        parts += (each.data, _END)
    raw = b"".join([*parts, PADDING])
    data = np.frombuffer(raw, np.uint8)
    lengths = np.fromiter((len(each.data) for each in records), np.int64, len(records))
    numbers = [each.number for each in records]
    parts.clear()
    records.clear()
    ends = len(PADDING) - 1 + np.cumsum(lengths + 1)
    tables, misfits = make_tables(len(raw)), np.empty(len(numbers), np.int64)
    scanner = scan_json.scan if json else scan_protobuf.scan
    count = scanner(data, ends - lengths, ends, tables, _words(), name_of(SCOPE), misfits)

    def record(at: int) -> Record:
        return Record(raw[ends[at] - lengths[at] : ends[at]], numbers[at])

    places = tables.resources[: tables.counts[3]].tolist()
    try:
        known = {written: resource(written, builder) for written in {raw[begin:end] for begin, end in places}}
    except SpanError:
        # Whose it is, and that it is damaged, is said where spans are read one by one.
        return [record(each) for each in range(len(numbers))]
    resources = [known[raw[begin:end]] for begin, end in places]
    for name, frame in scanned.frames(tables, _words(), resources, numbers, data, json):
        builder.add_frame(name, frame)
    return [record(each) for each in misfits[:count]]
