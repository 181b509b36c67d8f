"""The vLLM versions that the tests run, and where they lie."""

import os
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALLED = "0.32.0"
"""The vLLM that lies in the tests' own environment; the others are lanes."""
VERSIONS = tuple(os.environ.get("VLLM_VERSIONS", "0.28.0 0.32.0 0.33.0").split())
"""The versions that tests are run for; the variable names others, whose lanes must be there."""
ENGINES = ("0.30.0", INSTALLED)
"""The versions whose real engine the tests start."""
LANES = tuple(version for version in VERSIONS if version != INSTALLED)


def lane_folder(version: str) -> Path | None:
    """Return the folder of a vLLM version; None for the one that is installed in the tests' environment."""
    if version == INSTALLED:
        return None
    if version not in (*LANES, *ENGINES):
        raise LookupError(f"vLLM {version} is none of {', '.join(VERSIONS)}")
    return ROOT / ".lanes" / version


def missing_vllm() -> str | None:
    """Return what is missing of the vLLM versions that the tests need."""
    if find_spec("vllm") is None:
        return f"vLLM {INSTALLED} is not installed in this environment"
    for version in dict.fromkeys((*LANES, *(engine for engine in ENGINES if engine != INSTALLED))):
        folder = ROOT / ".lanes" / version
        if not (folder / "vllm" / "__init__.py").is_file():
            return f"vLLM {version} is not in {folder.relative_to(ROOT)}"
    return None
