"""The project's own files: the lock, and what the set-up scripts promise."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from vllm_versions import ENGINES, INSTALLED, LANES

ROOT = Path(__file__).parents[1]


def normalized(requirement: str) -> str:
    """Return a requirement in one form: the name as indexes write it, and its marker."""
    parsed = Requirement(requirement)
    return f"{canonicalize_name(parsed.name)}{parsed.specifier};{parsed.marker or ''}"


def locked(entry: dict[str, Any]) -> str:
    """Return the requirement that an entry of the lock's metadata stands for."""
    # The lock says of an optional one which extra it is of, and names a version of Python in full.
    marker = re.sub(r"(?: and )?extra == '[^']*'", "", entry.get("marker", ""))
    marker = marker.replace("python_full_version", "python_version")
    return normalized(entry["name"] + entry.get("specifier", "") + (f"; {marker}" if marker else ""))


def test_lock_is_in_step() -> None:
    """uv.lock knows the requirements of pyproject.toml, and nothing but the public index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (own,) = [package for package in lock["package"] if package["name"] == project["project"]["name"]]
    assert own["version"] == project["project"]["version"]
    optional = [item for items in project["project"]["optional-dependencies"].values() for item in items]
    assert {locked(entry) for entry in own["metadata"]["requires-dist"]} == {
        normalized(item) for item in project["project"]["dependencies"] + optional
    }
    assert {locked(entry) for entry in own["metadata"]["requires-dev"]["dev"]} == {
        normalized(item) for item in project["dependency-groups"]["dev"]
    }
    sources = [package["source"] for package in lock["package"] if package is not own]
    assert all(source == {"registry": "https://pypi.org/simple"} for source in sources)


def test_setup_installs_what_the_tests_run() -> None:
    """The versions in the set-up are those of the tests."""
    (lanes,) = re.findall(r"^LANES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(lanes.split()) == {*LANES, *ENGINES} - {INSTALLED}
    assert f"VLLM={INSTALLED}\n" in (ROOT / "scripts" / "setup.sh").read_text()


@pytest.mark.parametrize("python", ["/none/python", "/bin/true"])
def test_setup_without_python(tmp_path: Path, python: str) -> None:
    """No Python that serves: one sentence that says which ones do."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "setup.sh").write_bytes((ROOT / "scripts" / "setup.sh").read_bytes())
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    done = subprocess.run(
        ["bash", scripts / "setup.sh", "venv"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": python},
    )
    assert done.returncode == 1
    assert "no Python 3.11 to 3.14 found" in done.stderr
