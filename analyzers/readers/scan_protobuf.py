"""OTLP's Protobuf, as the collector and every SDK write it, to the tables of `compiled`."""

from typing import Any

import numpy as np

from analyzers.readers.compiled import (
    ATTRIBUTES,
    BOOLEAN,
    DOUBLE,
    ELEMENTS,
    END,
    INT,
    INTS,
    KEY,
    MISFIT,
    NAME,
    ONE,
    OWNER,
    PARENT,
    RECORD,
    RESOURCE,
    RESOURCES,
    SPAN,
    SPANS,
    START,
    STRING,
    STRINGS,
    TRACE,
    TRACE_LOW,
    TWO,
    Bytes,
    Ints,
    Name,
    Tables,
    Words,
    compiled,
    find_word,
    inner,
    is_name,
    swapped,
    word_at,
)

_HIGH = np.uint64(0x8080808080808080)
# Tags: the field's number, times 8, and how it is written: 0 a number, 1 eight bytes, 2 a length and bytes, 5 four.
_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A
_BOOLEAN, _INTEGER, _DOUBLE, _ARRAY = 0x10, 0x18, 0x21, 0x2A
_PARENT, _NAME, _KIND, _START, _END, _ATTRIBUTE = 0x22, 0x2A, 0x30, 0x39, 0x41, 0x4A
_DROPPED_ATTRIBUTES, _DROPPED_EVENTS, _LINK, _DROPPED_LINKS, _STATUS = 0x50, 0x60, 0x6A, 0x70, 0x7A
_NEEDED = 1 << TRACE | 1 << SPAN | 1 << NAME
_FLAGS, _FLAGS_, _LINK_FLAGS, _LINK_ATTRIBUTE = 0x85, 0x01, 0x35, 0x22


@inner
def _number(data: Bytes, at: int, end: int) -> Any:
    """Return a number and the position behind it."""
    value = np.uint64(0)
    for each in range(10):
        if at >= end:
            return value, MISFIT
        byte = data[at]
        at += 1
        if each == 9 and byte > 1:
            return value, MISFIT
        value |= np.uint64(byte & 127) << np.uint64(7 * each)
        if byte < 128:
            return value, at
    return value, MISFIT


@inner
def _part(data: Bytes, at: int, end: int) -> Any:
    """Return where the bytes behind a length begin, and where they end."""
    length, at = _number(data, at, end)
    if at < 0 or length > np.uint64(end - at):
        return MISFIT, MISFIT
    return at, at + np.int64(length)


@inner
def _is_ascii(data: Bytes, at: int, end: int) -> Any:
    while at + 8 <= end:
        if word_at(data, at) & _HIGH:
            return False
        at += 8
    while at < end:
        if data[at] >= 128:
            return False
        at += 1
    return True


@inner
def _value(data: Bytes, at: int, end: int, kind: int, table: Ints, row: int, column: int) -> Any:
    """Put a value that is no array into a table; return whether it is of its kind and fills its place."""
    if at >= end:
        return False
    tag = data[at]
    at += 1
    if kind == STRING:
        if tag != _FIRST:
            return False
        begin, stop = _part(data, at, end)
        table[row, column], table[row, column + 1] = begin, stop - begin
        return begin > 0 and stop == end and _is_ascii(data, begin, end)
    if kind == DOUBLE:
        table[row, column] = np.int64(word_at(data, at))
        return tag == _DOUBLE and at + 8 == end
    value, at = _number(data, at, end)
    table[row, column] = np.int64(value)
    if kind == INT:
        return tag == _INTEGER and at == end
    return kind == BOOLEAN and tag == _BOOLEAN and at == end and value <= np.uint64(1)


@inner
def _array(data: Bytes, at: int, end: int, kind: int, row: int, tables: Tables) -> Any:
    """Put an array into the tables; return whether it is of its kind."""
    if at >= end or data[at] != _ARRAY:
        return False
    at, stop = _part(data, at + 1, end)
    if at < 0 or stop != end:
        return False
    first = tables.counts[ELEMENTS]
    while at < end:
        element = tables.counts[ELEMENTS]
        if element == len(tables.elements) or data[at] != _FIRST:
            return False
        begin, at = _part(data, at + 1, end)
        if begin < 0 or not _value(data, begin, at, INT if kind == INTS else STRING, tables.elements, element, 0):
            return False
        tables.counts[ELEMENTS] += 1
    tables.attributes[row, ONE], tables.attributes[row, TWO] = first, tables.counts[ELEMENTS] - first
    return True


@inner
def _attribute(data: Bytes, at: int, end: int, span: int, first: int, tables: Tables, words: Words) -> Any:
    """Take an attribute of a span whose first one is `first`; return whether it is one of ours."""
    row = tables.counts[ATTRIBUTES]
    if row == len(tables.attributes) or at >= end or data[at] != _FIRST:
        return False
    key, at = _part(data, at + 1, end)
    if key < 0 or at >= end or data[at] != _SECOND:
        return False
    word = find_word(data, key, at, words)
    begin, stop = _part(data, at + 1, end)
    if word < 0 or begin < 0 or stop != end:
        return False
    for other in range(first, row):
        if tables.attributes[other, KEY] == word:
            return False
    kind = words.kinds[word]
    if kind in (INTS, STRINGS):
        right = _array(data, begin, end, kind, row, tables)
    else:
        right = _value(data, begin, end, kind, tables.attributes, row, ONE)
    tables.attributes[row, OWNER], tables.attributes[row, KEY] = span, word
    tables.counts[ATTRIBUTES] += 1
    return right


@inner
def _is_text_attribute(data: Bytes, at: int, end: int) -> Any:
    """Whether an attribute that nobody looks at is plain text."""
    if at >= end or data[at] != _FIRST:
        return False
    key, at = _part(data, at + 1, end)
    if key < 0 or not _is_ascii(data, key, at) or at >= end or data[at] != _SECOND:
        return False
    value, stop = _part(data, at + 1, end)
    if value < 0 or stop != end or value == end or data[value] != _FIRST:
        return False
    text, stop = _part(data, value + 1, end)
    return text > 0 and stop == end and _is_ascii(data, text, end)


@inner
def _is_link(data: Bytes, at: int, end: int) -> Any:
    """Whether a link has no more than ids, flags and text."""
    while at < end:
        tag = data[at]
        if tag == _LINK_FLAGS:
            at += 5
            continue
        begin, at = _part(data, at + 1, end)
        if begin < 0 or (tag == _LINK_ATTRIBUTE and not _is_text_attribute(data, begin, at)):
            return False
        if tag not in (_FIRST, _SECOND, _LINK_ATTRIBUTE):
            return False
    return at == end


@inner
def _span(data: Bytes, at: int, end: int, record: int, resource: int, tables: Tables, words: Words) -> Any:
    """Take a span; return whether it is one of ours."""
    row = tables.counts[SPANS]
    if row == len(tables.spans):
        return False
    spans = tables.spans
    spans[row, RECORD], spans[row, RESOURCE] = record, resource
    for column in (PARENT, START, END):
        spans[row, column] = 0
    found = 0
    first = tables.counts[ATTRIBUTES]
    while at < end:
        tag = data[at]
        at += 1
        if tag in (_START, _END):
            column = START if tag == _START else END
            if found & 1 << column:
                return False
            found |= 1 << column
            spans[row, column] = np.int64(word_at(data, at))
            if spans[row, column] < 0:
                return False
            at += 8
        elif tag in (_KIND, _DROPPED_ATTRIBUTES, _DROPPED_EVENTS, _DROPPED_LINKS):
            _, at = _number(data, at, end)
            if at < 0:
                return False
        elif tag == _FLAGS:
            if data[at] != _FLAGS_:
                return False
            at += 5
        else:
            begin, at = _part(data, at, end)
            if begin < 0:
                return False
            if tag == _ATTRIBUTE:
                if not _attribute(data, begin, at, row, first, tables, words):
                    return False
            elif tag == _NAME:
                if found & 1 << NAME:
                    return False
                found |= 1 << NAME
                spans[row, NAME] = find_word(data, begin, at, words)
                if spans[row, NAME] < 0:
                    return False
            elif tag in (_FIRST, _SECOND, _PARENT):
                column = TRACE if tag == _FIRST else (SPAN if tag == _SECOND else PARENT)
                empty = tag == _PARENT and begin == at
                if found & 1 << column or (not empty and at - begin != (16 if tag == _FIRST else 8)):
                    return False
                found |= 1 << column
                if not empty:
                    spans[row, column] = np.int64(swapped(word_at(data, begin)))
                if tag == _FIRST:
                    spans[row, TRACE_LOW] = np.int64(swapped(word_at(data, begin + 8)))
            elif tag == _LINK:
                if not _is_link(data, begin, at):
                    return False
            elif begin != at or (tag != _STATUS and tag != _THIRD):
                return False
    if at != end or found & _NEEDED != _NEEDED:
        return False
    tables.counts[SPANS] += 1
    return True


@inner
def _is_scope(data: Bytes, at: int, end: int, scope: Name) -> Any:
    named = False
    while at < end:
        tag = data[at]
        begin, at = _part(data, at + 1, end)
        if begin < 0 or not _is_ascii(data, begin, at):
            return False
        if tag == _FIRST:
            if named or not is_name(data, begin, at, scope):
                return False
            named = True
        elif tag != _SECOND:
            return False
    return named


@inner
def _scope_spans(
    data: Bytes, at: int, end: int, record: int, resource: int, tables: Tables, words: Words, scope: Name
) -> Any:
    """Take the spans of one scope; return whether it is ours, and they are."""
    ours = False
    while at < end:
        tag = data[at]
        begin, at = _part(data, at + 1, end)
        if begin < 0:
            return False
        if tag == _SECOND:
            if not _span(data, begin, at, record, resource, tables, words):
                return False
        elif tag == _FIRST:
            if ours or not _is_scope(data, begin, at, scope):
                return False
            ours = True
        elif tag != _THIRD or not _is_ascii(data, begin, at):
            return False
    return ours


@inner
def _resource_spans(data: Bytes, at: int, end: int, record: int, tables: Tables, words: Words, scope: Name) -> Any:
    """Take the spans of one resource; return whether they are ours."""
    resource = tables.counts[RESOURCES]
    if resource == len(tables.resources):
        return False
    tables.counts[RESOURCES] += 1
    tables.resources[resource, 0] = tables.resources[resource, 1] = 0
    while at < end:
        tag = data[at]
        begin, at = _part(data, at + 1, end)
        if begin < 0:
            return False
        if tag == _SECOND:
            if not _scope_spans(data, begin, at, record, resource, tables, words, scope):
                return False
        elif tag == _FIRST:
            # Its bytes are decoded later, and found wrong there.
            if tables.resources[resource, 1]:
                return False
            tables.resources[resource, 0], tables.resources[resource, 1] = begin, at
        elif tag != _THIRD or not _is_ascii(data, begin, at):
            return False
    return True


@inner
def _message(data: Bytes, at: int, end: int, record: int, tables: Tables, words: Words, scope: Name) -> Any:
    if at >= end:
        return False
    while at < end:
        tag = data[at]
        begin, at = _part(data, at + 1, end)
        if tag != _FIRST or begin < 0 or not _resource_spans(data, begin, at, record, tables, words, scope):
            return False
    return True


@compiled
def scan(data: Bytes, begins: Ints, ends: Ints, tables: Tables, words: Words, scope: Name, misfits: Ints) -> Any:
    """Fill `tables` with the spans of the records between `begins` and `ends`; return how many `misfits` there are.

    `PADDING` stands around all records.
    """
    missed = 0
    for record in range(len(begins)):
        kept = tables.counts.copy()
        if not _message(data, begins[record], ends[record], record, tables, words, scope):
            for each in range(len(kept)):
                tables.counts[each] = kept[each]
            misfits[missed] = record
            missed += 1
    return missed
