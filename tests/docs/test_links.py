"""Links, and what must not stand in the tree."""

import re
import subprocess
from pathlib import Path

import pytest

from docs.markdown import DOCS, ROOT

PRIVATE = {
    "a path of one machine": r"(?<![\w.~$}-])/(?:root|work|home/\w+|Users/\w+|tmp/dev)/",
    "an e-mail address": r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b",
}
# Addresses that are no person's: examples, and how git and systemd write a name.
HARMLESS = re.compile(r"@(?:example\.(?:com|org)|[\w.-]+\.(?:service|socket|timer))$")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "path", [*DOCS, ROOT / "collector" / "README.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_relative_links_resolve(path: Path) -> None:
    """Every link within the tree leads to a file, and to a heading of it where it names one."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, part = target.partition("#")
        file = (path.parent / name) if name else path
        if not file.exists() or (part and part not in anchors(file)):
            broken.append(target)
    assert not broken, f"{path.relative_to(ROOT)} links to what is not there: {', '.join(broken)}"


def test_every_page_is_reachable() -> None:
    """A page of docs/ that nothing links to is not read."""
    linked = {
        (path.parent / target.partition("#")[0]).resolve()
        for path in DOCS
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", target)
    }
    lonely = [path.name for path in DOCS if path.parent.name == "docs" and path.resolve() not in linked]
    assert not lonely, f"nothing links to {', '.join(lonely)}"


def tracked() -> list[Path]:
    """Return the files of the project: what git tracks, or in an unpacked archive all that is not built."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    tops = ("otel_cache", "analyzers", "collector", "deploy", "docs", "scripts", "tests")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return files + [path for path in ROOT.iterdir() if path.is_file()]


@pytest.mark.parametrize("what", PRIVATE)
def test_nothing_private(what: str) -> None:
    """The tree names no machine that it was made on, and nobody's address."""
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for match in re.finditer(PRIVATE[what], text):
            if not HARMLESS.search(match[0]) and path != Path(__file__):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line} {match[0]}")
    assert not found, f"{what}: {'; '.join(found)}"
