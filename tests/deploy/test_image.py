"""The Dockerfile: linted, pinned, and without root in the end."""

import re
import subprocess
import sysconfig
from pathlib import Path

from .manifests import DEPLOY, UID

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")


def stages() -> dict[str, str]:
    """Return the text of each stage by its name."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def lint(path: Path) -> tuple[int, str]:
    """Run hadolint."""
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_hadolint() -> None:
    """Nothing to complain of."""
    assert lint(DOCKERFILE) == (0, "")


def test_hadolint_looks(tmp_path: Path) -> None:
    """A package without a version is complained of."""
    path = tmp_path / "Dockerfile"
    path.write_text(TEXT.replace("pip install uv==0.13.9", "pip install uv"))
    code, said = lint(path)
    assert code and "DL3013" in said


def test_bases_have_versions() -> None:
    """Each base is an argument, whose default names a version."""
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE))
    assert bases == {f"${{{name}}}" for name in defaults}
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image) for image in defaults.values())


def test_no_root() -> None:
    """Whatever is run from an image runs as the one user."""
    for name, text in stages().items():
        if name != "build":
            assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == [f"{UID}:{UID}"], name
            # Nothing is run as root after it, and it is what starts.
            assert "RUN" not in text[text.index("USER") :]
            assert "ENTRYPOINT" in text[text.index("USER") :]


def test_the_lock_decides() -> None:
    """Dependencies are those of the lock, without those of the tests."""
    syncs = re.findall(r"uv sync [^&\n]*", stages()["build"])
    assert syncs and all("--frozen" in each and "--no-dev" in each for each in syncs)
