"""docs/architecture.md has a line per module, and docs/ladder.md the ladder as it is."""

import re
from importlib.resources import as_file, files

from analyzers import model
from analyzers.analysis import analyze
from analyzers.readers import open_capture
from docs.markdown import ROOT, named, read, sections, table

PACKAGES = ("otel_cache", "analyzers")


def test_every_module_has_a_line() -> None:
    """No module is missing, and none that is listed is gone."""
    listed = [
        folder + name
        for heading, part in sections(read("docs/architecture.md"), 3).items()
        if (folder := heading.split("`")[1]).endswith("/")
        for name in table(part.split("\n## ")[0])
    ]
    existing = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert sorted(listed) == sorted(existing)


def test_files_that_architecture_names_exist() -> None:
    """A path in backticks leads to something."""
    named_files = named(read("docs/architecture.md"), r"[\w./-]+/[\w.-]+\.\w+")
    gone = sorted(name for name in named_files if not (ROOT / name).exists())
    assert not gone, f"docs/architecture.md names {', '.join(gone)}"


def test_every_class_has_its_section() -> None:
    """docs/ladder.md explains each class of a lost token, in the order of the ladder; docs/analyze.md names each."""
    headings = [heading.strip("`") for heading in sections(read("docs/ladder.md"), 3) if heading.startswith("`")]
    assert headings == list(model.CLASSES)
    for page in ("docs/ladder.md", "docs/analyze.md"):
        assert named(read(page), r"[a-z_]+") >= set(model.CLASSES), page


def test_the_model_case_is_as_told() -> None:
    """The ladder's figures in docs/ladder.md are those of the capture that ships."""
    with as_file(files("analyzers") / "examples" / "model_case.jsonl") as path:
        analysis = analyze(open_capture([path]))
    told = table(sections(read("docs/ladder.md"))["The model case"])
    for lookup in analysis.lookups:
        cells = told[lookup.request_id]
        hit, *lost = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", " ".join(cells))]
        assert (hit, lost) == (lookup.hit_tokens, [lookup.lost.get(cls, 0) for cls in _TOLD])


_TOLD = (model.COLD, model.TAIL, model.SPECULATIVE_DROP, model.SHIFTED_BOUNDARY)
