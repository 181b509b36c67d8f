"""Tables in Markdown, and text that Markdown shows as it is."""

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~&$@])")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], aligned: Sequence[str]) -> str:
    """Return a table of cells that are text; `aligned` has a `<` or `>` for each column."""
    lines = [[escape(cell) for cell in header], ["--:" if align == ">" else "---" for align in aligned]]
    lines += [[escape(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Return `text` such that Markdown shows it as it is, on one line: neither markup nor HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("<", "&lt;").replace(">", "&gt;")
