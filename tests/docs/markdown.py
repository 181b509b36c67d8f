"""Markdown as the documentation tests need it: sections, tables and code blocks."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(name: str) -> str:
    """Return the text of a document by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def sections(text: str, level: int = 2) -> dict[str, str]:
    """Return what stands under each heading of this level, by the heading."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of all table rows, without heads and rules."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not re.fullmatch(r"[|: -]+", line) and not re.fullmatch(r"[|: -]+", following):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(text: str) -> dict[str, list[str]]:
    """Return the rows whose first cell is one name in backticks, by that name; no name may stand twice."""
    found: dict[str, list[str]] = {}
    for cells in rows(text):
        if name := re.fullmatch(r"`([^`]+)`", cells[0]):
            assert name[1] not in found, f"{name[1]} stands twice"
            found[name[1]] = cells[1:]
    return found


def fences(text: str) -> list[tuple[str, str]]:
    """Return the fenced code blocks with their languages, those in lists without their indentation."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(language, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)) for indent, language, body in found]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of a language."""
    return [body for found, body in fences(text) if found == language]


def named(text: str, pattern: str) -> set[str]:
    """Return what stands in backticks and matches `pattern` as a whole."""
    return {name for name in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(pattern, name)}
