"""docs/library.md against the code: every column, every field, their types, and that each is told."""

import ast
from collections.abc import Mapping

import analyzers
from analyzers.readers import schemas
from analyzers.reporters import lookup_frame
from docs.markdown import ROOT, read, rows, sections, table

TEXT = read("docs/library.md")
PARTS = {
    heading.strip("`"): part.split("\n## ")[0]
    for page in sections(TEXT).values()
    for heading, part in sections(page, 3).items()
}
FRAMES = {
    name: getattr(schemas, name.upper())
    for name in ("lookups", "groups", "stores", "evicts", "steps", "requests", "usages", "counters")
}
APART = ("usages", "counters")
"""Frames that do not have the shared columns."""


def told(part: str) -> dict[str, str]:
    """Return type by name of a section's table; each row says what it means."""
    found = table(part)
    assert all(len(cells) == 2 and cells[1] for cells in found.values()), "a row says nothing"
    return {name: cells[0].replace("\\|", "|") for name, cells in found.items()}


def test_every_column_of_a_frame() -> None:
    """Names, types and order."""
    shared = told(PARTS["Shared columns"])
    for name, schema in FRAMES.items():
        expected = {column: str(kind) for column, kind in schema.items()}
        own = told(PARTS[name])
        assert list(({} if name in APART else shared) | own) == list(expected), name
        assert ({} if name in APART else shared) | own == expected, name


def test_every_column_of_the_table_of_lookups() -> None:
    """Names, types and order; of the groups, that they are a list of structs."""
    expected = {name: str(kind) for name, kind in lookup_frame.SCHEMA.items()}
    expected["groups"] = expected["groups"].partition("(")[0] + "(Struct)"
    assert list(told(sections(TEXT)["The table of lookups"]).items()) == list(expected.items())


def dataclasses() -> Mapping[str, dict[str, str]]:
    """Return the fields of every class in analyzers/model.py, with their annotations as they are written."""
    tree = ast.parse((ROOT / "analyzers" / "model.py").read_text(encoding="utf-8"))
    return {
        node.name: {
            field.target.id: ast.unparse(field.annotation)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def test_every_field_of_every_object() -> None:
    """Names, types and order; no class is missing, and none is told that is gone."""
    classes = dataclasses()
    assert set(sections(sections(TEXT)["Objects"], 3)) == {f"`{name}`" for name in classes}
    for name, fields in classes.items():
        assert list(told(PARTS[name]).items()) == list(fields.items()), name


def test_every_name_of_the_library() -> None:
    """What `analyzers` offers is in the page's first table or in its objects, and can be imported."""
    calls = {cells[0].strip("`").partition("(")[0] for cells in rows(TEXT.split("\n## ")[0])}
    assert calls | {"Capture", "Analysis"} == set(analyzers.__all__)
    for name in analyzers.__all__:
        assert getattr(analyzers, name).__name__ == name
