"""The imports of every module, held against the table in docs/architecture.md. Nothing is imported to find out."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "architecture.md"
HEADING = "## Who imports whom"
PACKAGES = ("otel_cache", "analyzers")


@dataclass(frozen=True)
class Row:
    """What the modules under `name` may import: anywhere, and inside functions."""

    name: str
    anywhere: frozenset[str]
    inside: frozenset[str]


def read_table() -> dict[str, Row]:
    """Return the rows of the table by name."""
    section = TABLE.read_text().split(HEADING, 1)[1].split("\n## ", 1)[0]
    rows = {}
    for line in section.splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0]:
            (name,), ours, others, inside = cells
            rows[name] = Row(name, frozenset(ours + others), frozenset(inside))
    return rows


ROWS = read_table()


def modules() -> dict[str, Path]:
    """Return every module of the project by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool, int]]:
    """Yield what is imported, whether inside a function, and in which line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide who imports whom"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module), inside, node.lineno
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            # For the type checker alone: never executed.
            yield from (found for branch in node.orelse for found in imports(branch, inside))
        else:
            yield from imports(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def row_of(module: str) -> Row:
    """Return the row with the longest name that `module` begins with."""
    while module not in ROWS:
        module = module.rpartition(".")[0]
    return ROWS[module]


def covered(name: str, names: frozenset[str]) -> bool:
    """Whether `name` is one of `names` or below one."""
    return any(name == known or name.startswith(known + ".") for known in names)


def allowed(module: str, name: str, inside: bool) -> bool:
    """Whether `module` may import `name`."""
    if name.split(".")[0] in sys.stdlib_module_names:
        return True
    row = row_of(module)
    own = name in MODULES and row_of(name) is row
    return own or covered(name, row.anywhere) or (inside and covered(name, row.inside))


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_in_the_table(module: str) -> None:
    """No module imports what its row does not list."""
    path = MODULES[module]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}{'' if inside else ' at its top'}"
        for name, inside, line in imports(ast.parse(path.read_text()))
        if not allowed(module, name, inside)
    ]
    assert not wrong, f"not in the row `{row_of(module).name}` of docs/architecture.md: {'; '.join(wrong)}"


def test_every_row_is_of_the_project() -> None:
    """No row and no name of ours in it outlives its module."""
    names = {name for row in ROWS.values() for name in {row.name, *row.anywhere, *row.inside}}
    gone = sorted(name for name in names if name.split(".")[0] in PACKAGES and name not in MODULES)
    assert not gone, f"docs/architecture.md names modules that do not exist: {', '.join(gone)}"


def test_every_permission_is_used() -> None:
    """What no module of a row imports any more leaves the row."""
    unused = []
    for row in ROWS.values():
        used = {
            name
            for module, path in MODULES.items()
            if row_of(module) is row
            for name, _, _ in imports(ast.parse(path.read_text()))
        }
        unused += [
            f"{row.name}: {permission}"
            for permission in sorted(row.anywhere | row.inside)
            if not any(covered(name, frozenset({permission})) for name in used)
        ]
    assert not unused, f"docs/architecture.md permits what nobody does: {'; '.join(unused)}"


def test_the_table_keeps_its_promises() -> None:
    """Whatever else changes in the table, these directions do not."""
    for row in ROWS.values():
        permitted = row.anywhere | row.inside
        if row.name.startswith("otel_cache"):
            assert not covered_any(permitted, "analyzers", "click", "rich")
            assert row.name == "otel_cache.sidecar.parquet" or "polars" not in permitted
        if row.name not in ("otel_cache.bindings", "analyzers.vllm_lab"):
            assert not covered_any(permitted, "vllm", "torch")
    for name in ("otel_cache.pipeline", "otel_cache.sidecar"):
        assert not covered_any(ROWS[name].anywhere, "otel_cache.bindings", "otel_cache.instrumentor")


def covered_any(names: frozenset[str], *forbidden: str) -> bool:
    """Whether one of `names` is one of `forbidden` or below one."""
    return any(covered(name, frozenset(forbidden)) for name in names)
