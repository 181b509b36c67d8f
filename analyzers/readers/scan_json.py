"""OTLP JSON, compact as the sidecar and the collector's file exporter write it, to the tables of `compiled`."""

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
    mask_of,
    name_of,
    number_of,
    swapped,
    word_at,
)

_DEPTH = 32
_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS = 34, 92, 44, 58, 45
_OPEN, _CLOSE, _BEGIN, _FINISH = 91, 93, 123, 125
_U = np.uint64
_ONES, _HIGH = _U(0x0101010101010101), _U(0x8080808080808080)
_NIBBLES, _ZEROS, _NINES = _U(0x0F0F0F0F0F0F0F0F), _U(0x3030303030303030), _U(0x7676767676767676)
_OVER = _U(0xF0F0F0F0F0F0F0F0)
_EVEN_BYTES, _EVEN_PAIRS, _LOW_HALF = _U(0x00FF00FF00FF00FF), _U(0x0000FFFF0000FFFF), _U(0xFFFFFFFF)
_QUOTES, _BACKSLASHES, _SPACES = _U(0x2222222222222222), _U(0x5C5C5C5C5C5C5C5C), _U(0x2020202020202020)


_KEY, _VALUE, _VALUE_ = number_of(b'{"key":"'), number_of(b'","value'), number_of(b'":{"')
_INT, _STRING, _STRING_ = number_of(b"intValue"), number_of(b"stringVa"), number_of(b'lue":"')
_BOOL, _BOOL_, _DOUBLE, _DOUBLE_ = (
    number_of(b"boolValu"),
    number_of(b'e":'),
    number_of(b"doubleVa"),
    number_of(b'lue":'),
)
_ARRAY, _ARRAY_, _ARRAY__ = number_of(b"arrayVal"), number_of(b'ue":{"va'), number_of(b'lues":[')
_TRUE, _FALSE, _NULL = number_of(b"true"), number_of(b"false"), number_of(b"null")
_ELEMENT, _COLONS = number_of(b'{"'), number_of(b'":')
_M2, _M3, _M4, _M5, _M6, _M7 = (mask_of(size) for size in range(2, 8))


_NEEDED = 1 << TRACE | 1 << SPAN | 1 << NAME | 1 << START | 1 << END
_TRACE_ID = name_of("traceId")
_SPAN_ID = name_of("spanId")
_PARENT_ID = name_of("parentSpanId")
_NAME = name_of("name")
_START = name_of("startTimeUnixNano")
_END = name_of("endTimeUnixNano")
_ATTRIBUTES = name_of("attributes")
_SCOPE = name_of("scope")
_SPANS = name_of("spans")
_RESOURCE = name_of("resource")
_SCOPE_SPANS = name_of("scopeSpans")
_RESOURCE_SPANS = name_of("resourceSpans")


@inner
def _text(data: Bytes, at: int) -> Any:
    """Return where the string that begins at `at` ends: plain ASCII, nothing escaped."""
    while True:
        word = word_at(data, at)
        quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
        found = word | ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes)
        found |= (word - _SPACES) & ~word
        if found & _HIGH:
            break
        at += 8
    while True:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < 32 or byte == _BACKSLASH or byte > 126:
            return MISFIT
        at += 1


@inner
def _number(data: Bytes, at: int) -> Any:
    """Return an integer, in quotes or not, and the position behind it."""
    quoted = data[at] == _QUOTE
    at += 1 if quoted else 0
    negative = data[at] == _MINUS
    at += 1 if negative else 0
    first = at
    value = np.uint64(0)
    while np.uint8(data[at] - 48) < 10 and at - first < 19:
        value = value * _U(10) + _U(data[at] - 48)
        at += 1
    zero = data[first] == 48 and (at - first > 1 or negative)
    if at == first or zero or value > _U(0x7FFFFFFFFFFFFFFF):
        return np.int64(0), MISFIT
    if quoted:
        if data[at] != _QUOTE:
            return np.int64(0), MISFIT
        at += 1
    elif data[at] != _COMMA and data[at] != _FINISH and data[at] != _CLOSE:
        return np.int64(0), MISFIT
    return (-np.int64(value) if negative else np.int64(value)), at


@inner
def _eight_digits(data: Bytes, at: int) -> Any:
    """Return the number that 8 hexadecimal digits stand for, and whether they are some, in lower case."""
    word = word_at(data, at)
    digits = (word & _NIBBLES) + ((word >> _U(6)) & _ONES) * _U(9)
    # What these digits are written as: those above 9 as letters.
    above = ((digits + _NINES) >> _U(7)) & _ONES
    # The letters behind f are written as they are, too, but are digits above 15.
    wrong = (digits + _ZEROS + above * _U(39)) ^ word | digits & _OVER
    pairs = (digits << _U(4) | digits >> _U(8)) & _EVEN_BYTES
    fours = (pairs | pairs >> _U(8)) & _EVEN_PAIRS
    return swapped(fours | fours >> _U(16)) >> _U(32), wrong == _U(0)


@inner
def _sixteen_digits(data: Bytes, at: int) -> Any:
    high, right = _eight_digits(data, at)
    low, also = _eight_digits(data, at + 8)
    return np.int64(high << _U(32) | low), right and also


@inner
def _identifier(data: Bytes, at: int, end: int, column: int, spans: Ints, row: int) -> Any:
    """Put an identifier into a span; return whether it is one. A parent's may be empty."""
    if column == PARENT and end == at:
        spans[row, PARENT] = 0
        return True
    if end - at != (32 if column == TRACE else 16):
        return False
    spans[row, column], right = _sixteen_digits(data, at)
    if column == TRACE:
        spans[row, TRACE_LOW], also = _sixteen_digits(data, at + 16)
        right = right and also
    return right


@inner
def _pass_text(data: Bytes, at: int, loose: bool) -> Any:
    """Return where a string ends that is not looked at; a loose one may hold anything."""
    if not loose:
        return _text(data, at)
    while data[at] != _QUOTE:
        if data[at] < 32:
            return MISFIT
        at += 2 if data[at] == _BACKSLASH and data[at + 1] >= 32 else 1
    return at


@inner
def _pass(data: Bytes, at: int, loose: bool) -> Any:
    """Return the position behind a value that is not looked at: only its form is."""
    arrays = np.uint64(0)
    depth = 0
    while True:
        byte = data[at]
        opened = False
        if byte == _QUOTE:
            at = _pass_text(data, at + 1, loose)
            if at < 0:
                return MISFIT
            at += 1
        elif byte in (_BEGIN, _OPEN):
            if depth == _DEPTH:
                return MISFIT
            arrays = arrays << _U(1) | _U(byte == _OPEN)
            depth += 1
            at += 1
            opened = True
        elif word_at(data, at) & _M4 == _TRUE or word_at(data, at) & _M4 == _NULL:
            at += 4
        elif word_at(data, at) & _M5 == _FALSE:
            at += 5
        else:
            at = _double(data, at)
            if at < 0:
                return MISFIT
        # Behind a value: what may follow it, up to where the next one begins.
        while depth:
            array = arrays & _U(1)
            byte = data[at]
            if byte == (_CLOSE if array else _FINISH):
                arrays >>= _U(1)
                depth -= 1
                at += 1
                opened = False
                continue
            if not opened:
                if byte != _COMMA:
                    return MISFIT
                at += 1
            if not array:
                if data[at] != _QUOTE:
                    return MISFIT
                at = _pass_text(data, at + 1, loose)
                if at < 0 or data[at + 1] != _COLON:
                    return MISFIT
                at += 2
            break
        if depth == 0:
            return at


@inner
def _element(data: Bytes, at: int, kind: int, tables: Tables) -> Any:
    """Return the position behind an element of an array."""
    row = tables.counts[ELEMENTS]
    if row == len(tables.elements) or word_at(data, at) & _M2 != _ELEMENT:
        return MISFIT
    at += 2
    if kind == INTS and word_at(data, at) == _INT and word_at(data, at + 8) & _M2 == _COLONS:
        value, at = _number(data, at + 10)
        tables.elements[row, 0] = value
    elif kind == STRINGS and word_at(data, at) == _STRING and word_at(data, at + 8) & _M6 == _STRING_:
        end = _text(data, at + 14)
        tables.elements[row, 0] = at + 14
        tables.elements[row, 1] = end - at - 14
        at = end + 1 if end > 0 else MISFIT
    else:
        return MISFIT
    if at < 0 or data[at] != _FINISH:
        return MISFIT
    tables.counts[ELEMENTS] += 1
    return at + 1


@inner
def _attributes(data: Bytes, at: int, span: int, tables: Tables, words: Words) -> Any:
    """Return the position behind a span's attributes; `at` is the first one's."""
    first = tables.counts[ATTRIBUTES]
    if data[at] == _CLOSE:
        return at + 1
    while True:
        row = tables.counts[ATTRIBUTES]
        if row == len(tables.attributes) or word_at(data, at) != _KEY:
            return MISFIT
        begin = at + 8
        end = begin
        while data[end] != _QUOTE:
            if data[end] < 32:
                return MISFIT
            end += 1
        word = find_word(data, begin, end, words)
        if word < 0 or word_at(data, end) != _VALUE or word_at(data, end + 8) & _M4 != _VALUE_:
            return MISFIT
        for other in range(first, row):
            if tables.attributes[other, KEY] == word:
                return MISFIT
        kind = words.kinds[word]
        at = end + 12
        value = word_at(data, at)
        if kind == INT:
            if value != _INT or word_at(data, at + 8) & _M2 != _COLONS:
                return MISFIT
            tables.attributes[row, ONE], at = _number(data, at + 10)
        elif kind == STRING:
            if value != _STRING or word_at(data, at + 8) & _M6 != _STRING_:
                return MISFIT
            end = _text(data, at + 14)
            tables.attributes[row, ONE], tables.attributes[row, TWO] = at + 14, end - at - 14
            at = end + 1 if end > 0 else MISFIT
        elif kind == BOOLEAN:
            if value != _BOOL or word_at(data, at + 8) & _M3 != _BOOL_:
                return MISFIT
            value = word_at(data, at + 11)
            true = value & _M4 == _TRUE
            if not true and value & _M5 != _FALSE:
                return MISFIT
            tables.attributes[row, ONE] = true
            at += 15 if true else 16
        elif kind == DOUBLE:
            if value != _DOUBLE or word_at(data, at + 8) & _M5 != _DOUBLE_:
                return MISFIT
            begin = at + 13
            at = _double(data, begin)
            tables.attributes[row, ONE], tables.attributes[row, TWO] = begin, at - begin
        elif kind in (INTS, STRINGS):
            if value != _ARRAY or word_at(data, at + 8) != _ARRAY_ or word_at(data, at + 16) & _M7 != _ARRAY__:
                return MISFIT
            at += 23
            tables.attributes[row, ONE] = tables.counts[ELEMENTS]
            if data[at] != _CLOSE:
                at = _element(data, at, kind, tables)
                while at > 0 and data[at] == _COMMA:
                    at = _element(data, at + 1, kind, tables)
            if at < 0 or data[at] != _CLOSE or data[at + 1] != _FINISH:
                return MISFIT
            at += 2
            tables.attributes[row, TWO] = tables.counts[ELEMENTS] - tables.attributes[row, ONE]
        else:
            return MISFIT
        if at < 0 or data[at] != _FINISH or data[at + 1] != _FINISH:
            return MISFIT
        tables.attributes[row, OWNER], tables.attributes[row, KEY] = span, word
        tables.counts[ATTRIBUTES] += 1
        at += 2
        if data[at] == _CLOSE:
            return at + 1
        if data[at] != _COMMA:
            return MISFIT
        at += 1


@inner
def _digits(data: Bytes, at: int) -> Any:
    while np.uint8(data[at] - 48) < 10:
        at += 1
    return at


@inner
def _double(data: Bytes, at: int) -> Any:
    """Return the position behind a number as JSON has them, and no float is too small for."""
    negative = data[at] == _MINUS
    at += 1 if negative else 0
    end = _digits(data, at)
    if end == at or (data[at] == 48 and end > at + 1):
        return MISFIT
    # An integer of 0 has no sign where it is read exactly.
    if negative and data[at] == 48 and data[end] != 46 and data[end] | 32 != 101:
        return MISFIT
    at = end
    if data[at] == 46:
        end = _digits(data, at + 1)
        if end == at + 1:
            return MISFIT
        at = end
    if data[at] | 32 == 101:
        at += 1
        at += 1 if data[at] == _MINUS or data[at] == 43 else 0
        end = _digits(data, at)
        if end == at or end > at + 2:
            return MISFIT
        at = end
    return at


@inner
def _key_at(data: Bytes, at: int) -> Any:
    """Return where the key of a member of an object ends: its closing quote."""
    if data[at] != _QUOTE:
        return MISFIT
    end = _text(data, at + 1)
    return end if end > 0 and data[end + 1] == _COLON else MISFIT


@inner
def _behind(data: Bytes, at: int, last: int) -> Any:
    """Return where the next member or element begins; 0: there is none more; less: something else stands there."""
    if at > 0 and data[at] == _COMMA:
        return at + 1
    return 0 if at > 0 and data[at] == last else MISFIT


@inner
def _span(data: Bytes, at: int, record: int, resource: int, tables: Tables, words: Words) -> Any:
    """Return the position behind a span."""
    row = tables.counts[SPANS]
    if row == len(tables.spans) or data[at] != _BEGIN:
        return MISFIT
    spans = tables.spans
    spans[row, RECORD], spans[row, RESOURCE] = record, resource
    spans[row, PARENT] = 0
    found = 0
    attributes = False
    at += 1
    while True:
        key = at + 1
        end = _key_at(data, at)
        if end < 0:
            return MISFIT
        at = end + 2
        column = 0
        if is_name(data, key, end, _TRACE_ID):
            column = TRACE
        elif is_name(data, key, end, _SPAN_ID):
            column = SPAN
        elif is_name(data, key, end, _PARENT_ID):
            column = PARENT
        elif is_name(data, key, end, _NAME):
            column = NAME
        elif is_name(data, key, end, _START):
            column = START
        elif is_name(data, key, end, _END):
            column = END
        if column:
            # A member that stands twice is left to the exact way.
            if found & 1 << column:
                return MISFIT
            found |= 1 << column
            if column >= START:
                spans[row, column], at = _number(data, at)
                if at < 0 or spans[row, column] < 0:
                    return MISFIT
            else:
                if data[at] != _QUOTE:
                    return MISFIT
                end = _text(data, at + 1)
                if end < 0:
                    return MISFIT
                if column == NAME:
                    spans[row, NAME] = find_word(data, at + 1, end, words)
                    if spans[row, NAME] < 0:
                        return MISFIT
                elif not _identifier(data, at + 1, end, column, spans, row):
                    return MISFIT
                at = end + 1
        elif is_name(data, key, end, _ATTRIBUTES):
            if attributes or data[at] != _OPEN:
                return MISFIT
            attributes = True
            at = _attributes(data, at + 1, row, tables, words)
        else:
            at = _pass(data, at, False)
        following = _behind(data, at, _FINISH)
        if following < 0:
            return MISFIT
        if following == 0:
            break
        at = following
    if found & _NEEDED != _NEEDED:
        return MISFIT
    tables.counts[SPANS] += 1
    return at + 1


@inner
def _scope(data: Bytes, at: int, scope: Name) -> Any:
    """Return the position behind a scope that is ours."""
    if data[at] != _BEGIN:
        return MISFIT
    at += 1
    named = False
    while True:
        key, end = at + 1, _key_at(data, at)
        if end < 0:
            return MISFIT
        at = end + 2
        if is_name(data, key, end, _NAME):
            if named or data[at] != _QUOTE:
                return MISFIT
            end = _text(data, at + 1)
            if end < 0 or not is_name(data, at + 1, end, scope):
                return MISFIT
            named = True
            at = end + 1
        else:
            at = _pass(data, at, False)
        following = _behind(data, at, _FINISH)
        if following <= 0:
            return at + 1 if following == 0 and named else MISFIT
        at = following


@inner
def _scope_spans(data: Bytes, at: int, record: int, resource: int, tables: Tables, words: Words, scope: Name) -> Any:
    """Return the position behind the spans of one scope."""
    if data[at] != _BEGIN:
        return MISFIT
    at += 1
    ours = spans = False
    while True:
        key, end = at + 1, _key_at(data, at)
        if end < 0:
            return MISFIT
        at = end + 2
        if is_name(data, key, end, _SCOPE):
            if ours:
                return MISFIT
            at = _scope(data, at, scope)
            ours = True
        elif is_name(data, key, end, _SPANS):
            if spans or data[at] != _OPEN:
                return MISFIT
            spans = True
            at += 1
            while data[at] != _CLOSE:
                at = _span(data, at, record, resource, tables, words)
                following = _behind(data, at, _CLOSE)
                if following < 0:
                    return MISFIT
                if following == 0:
                    break
                at = following
                if data[at] == _CLOSE:
                    return MISFIT
            at += 1
        else:
            at = _pass(data, at, False)
        following = _behind(data, at, _FINISH)
        if following <= 0:
            return at + 1 if following == 0 and ours and spans else MISFIT
        at = following


@inner
def _resource_spans(data: Bytes, at: int, record: int, tables: Tables, words: Words, scope: Name) -> Any:
    """Return the position behind the spans of one resource."""
    resource = tables.counts[RESOURCES]
    if data[at] != _BEGIN or resource == len(tables.resources):
        return MISFIT
    tables.counts[RESOURCES] += 1
    tables.resources[resource, 0] = tables.resources[resource, 1] = 0
    at += 1
    scopes = False
    while True:
        key, end = at + 1, _key_at(data, at)
        if end < 0:
            return MISFIT
        at = end + 2
        if is_name(data, key, end, _RESOURCE):
            if tables.resources[resource, 1]:
                return MISFIT
            # Its text is decoded later, and found wrong there.
            tables.resources[resource, 0] = at
            at = _pass(data, at, True)
            tables.resources[resource, 1] = at
        elif is_name(data, key, end, _SCOPE_SPANS):
            if scopes or data[at] != _OPEN:
                return MISFIT
            scopes = True
            at += 1
            while data[at] != _CLOSE:
                at = _scope_spans(data, at, record, resource, tables, words, scope)
                following = _behind(data, at, _CLOSE)
                if following < 0:
                    return MISFIT
                if following == 0:
                    break
                at = following
                if data[at] == _CLOSE:
                    return MISFIT
            at += 1
        else:
            at = _pass(data, at, False)
        following = _behind(data, at, _FINISH)
        if following <= 0:
            return at + 1 if following == 0 and scopes else MISFIT
        at = following


@inner
def _line(data: Bytes, at: int, record: int, tables: Tables, words: Words, scope: Name) -> Any:
    """Return the position behind a line's one object."""
    end = _key_at(data, at + 1)
    if data[at] != _BEGIN or end < 0 or not is_name(data, at + 2, end, _RESOURCE_SPANS) or data[end + 2] != _OPEN:
        return MISFIT
    at = end + 3
    while data[at] != _CLOSE:
        at = _resource_spans(data, at, record, tables, words, scope)
        following = _behind(data, at, _CLOSE)
        if following < 0:
            return MISFIT
        if following == 0:
            break
        at = following
        if data[at] == _CLOSE:
            return MISFIT
    return at + 2 if data[at + 1] == _FINISH else MISFIT


@compiled
def scan(data: Bytes, begins: Ints, ends: Ints, tables: Tables, words: Words, scope: Name, misfits: Ints) -> Any:
    """Fill `tables` with the spans of the records between `begins` and `ends`; return how many `misfits` there are.

    A byte that no JSON has stands behind every record, and `PADDING` around all of them.
    """
    missed = 0
    for record in range(len(begins)):
        kept = tables.counts.copy()
        at = _line(data, begins[record], record, tables, words, scope)
        while at > 0 and at < ends[record] and (data[at] == 10 or data[at] == 13 or data[at] == 32):
            at += 1
        if at != ends[record]:
            for each in range(len(kept)):
                tables.counts[each] = kept[each]
            misfits[missed] = record
            missed += 1
    return missed
