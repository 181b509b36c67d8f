"""A copy of a vLLM that differs in a few lines: links to the real one, and the edited files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

Edit = tuple[str, str]
"""A pattern, and what takes its place."""


def make_overlay(original: Path, target: Path, edits: Mapping[str, Sequence[Edit]]) -> Path:
    """Make `target` a folder with the package `vllm` of `original`, in which these files are edited."""
    _link(original / "vllm", target / "vllm", {tuple(Path(name).parts) for name in edits})
    for distribution in original.glob("vllm*.dist-info"):
        (target / distribution.name).symlink_to(distribution)
    for name, changes in edits.items():
        text = (original / "vllm" / name).read_text()
        for pattern, replacement in changes:
            text, count = re.subn(pattern, replacement, text)
            assert count, f"{name} has no {pattern}"
        (target / "vllm" / name).write_text(text)
    return target


def _link(original: Path, target: Path, edited: set[tuple[str, ...]]) -> None:
    target.mkdir(parents=True)
    for path in original.iterdir():
        below = {name[1:] for name in edited if name[0] == path.name}
        if path.name == "__pycache__" or () in below:
            continue
        if below:
            _link(path, target / path.name, below)
        else:
            (target / path.name).symlink_to(path)
