"""Lines of a text report: columns, wrapping, numbers. No line is wider than its width, whatever is put into it.

Widths are columns of a terminal, of which a Chinese character or an emoji takes two and a combining mark none.
"""

import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import wcwidth

GAP = 2
INDENT = "  "
Align = Literal["<", ">"]


def count(number: int, one: str, several: str | None = None) -> str:
    """Write a number with its noun: `1 lookup`, `1,200 lookups`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def percent(part: int, whole: int) -> str:
    """Write a share of `whole`; nothing where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def duration(seconds: tuple[float, float]) -> str:
    """Write a range of seconds in the unit that suits it: `1.2 to 3.0 h`."""
    low, high = seconds
    unit, size = next(
        (pair for pair in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)) if high >= pair[1]), ("us", 1e-6)
    )
    first, last = f"{low / size:.1f}", f"{high / size:.1f}"
    return f"{last} {unit}" if first == last else f"{first} to {last} {unit}"


def figures(evidence: Mapping[str, Any]) -> str:
    """Write what a finding rests on, for a reader: whole numbers in thousands, ranges of seconds in their unit."""
    return "; ".join(f"{_name(key)}: {_figure(key, value)}" for key, value in evidence.items())


def _name(key: str) -> str:
    return key.replace("_seconds", "").replace("_", " ")


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        if "seconds" in key and len(value) == 2:
            return duration((value[0], value[1]))
        return ", ".join(_figure(key, each) for each in value) or "none"
    if isinstance(value, Mapping):
        names = {name: "not known" if name in ("", None) else name for name in value}
        return ", ".join(f"{names[name]} ({_figure(key, each)})" for name, each in value.items()) or "none"
    if key in ("begin", "end") and isinstance(value, int):
        return f"{datetime.fromtimestamp(value / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def columns(text: str) -> int:
    """Return how many columns `text` takes, a line without control characters."""
    return len(text) if text.isascii() else wcwidth.width(text)


def pad(text: str, size: int, align: Align) -> str:
    """Fill `text` up to `size` columns."""
    fill = " " * (size - columns(text))
    return text + fill if align == "<" else fill + text


def printable(text: str) -> str:
    """Return `text` on one line, without what a terminal would take for a command."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def sentence(text: str) -> str:
    """Begin with a capital, as a line of its own does; but for a name, such as `replica-0`, which is as it is."""
    first = text.partition(" ")[0].rstrip(",:;")
    return text[:1].upper() + text[1:] if first.replace("'", "").isalpha() else text


def shorten(text: str, width: int) -> str:
    """Cut the middle out of an identifier that is wider than `width`: its ends tell it apart."""
    text = printable(text)
    whole = columns(text)
    if whole <= width:
        return text
    left = (width - 2) * 2 // 3
    if text.isascii():
        return text[:left] + ".." + text[whole - (width - 2 - left) :]
    begin = wcwidth.clip(text, 0, left, fillchar="")
    return f"{begin}..{wcwidth.clip(text, whole - (width - 2 - left), whole, fillchar='')}"


def wrap(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Return a sentence as lines of at most `width` columns; words that are wider are broken."""
    line, below = printable(text), indent if hanging is None else hanging
    if line.isascii():
        return textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=below, break_on_hyphens=False)
    return wcwidth.wrap(line, width, initial_indent=indent, subsequent_indent=below, break_on_hyphens=False)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], aligned: Sequence[Align], width: int, indent: str = ""
) -> list[str]:
    """Return a header and rows in columns. The last column is a sentence: it is wrapped, below its row if need be."""
    if not rows:
        return []
    cells = [header, *rows]
    sizes = [max(columns(row[index]) for row in cells) for index in range(len(header) - 1)]
    left = len(indent) + sum(size + GAP for size in sizes)
    # Where less than a word or two fits beside the columns, the sentence goes below them.
    beside = width - left >= min(24, max(columns(row[-1]) for row in cells))
    lines: list[str] = []
    for row in cells:
        fields = [pad(cell, size, align) for cell, align, size in zip(row, aligned, sizes, strict=False)]
        line = indent + (" " * GAP).join(fields)
        if beside:
            margin = " " * left
            wrapped = wrap(row[-1], width, margin) or [""]
            lines.append((line + " " * GAP + wrapped[0][left:]).rstrip())
            lines.extend(wrapped[1:])
        else:
            lines.extend(wrap_columns(line, width))
            if row is not header:
                lines.extend(wrap(f"{header[-1]}: {row[-1]}", width, indent + " " * 4))
    return lines


def wrap_columns(line: str, width: int) -> list[str]:
    """Return a row of columns as it is, or as words on several lines where it is wider than `width`."""
    line = line.rstrip()
    if columns(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return wrap(line, width, indent, indent + " " * 4)
