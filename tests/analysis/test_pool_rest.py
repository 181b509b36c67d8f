"""How much of a pool was cached and used at the most: of the model case, against its own stores and steps."""

from importlib.resources import files
from pathlib import Path

import pytest

from analyzers.analysis import analyze
from analyzers.readers import open_capture

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))


def test_what_was_cached_and_used() -> None:
    """Nothing was evicted, so that all that was ever stored was cached in the end; shares are parts of that."""
    capture = open_capture([EXAMPLE])
    (pool,) = analyze(capture).capacity
    assert pool.cached_most == sum(group.peak_blocks for group in pool.groups) > 0
    assert sum(group.share for group in pool.groups) == pytest.approx(1)
    for group in pool.groups:
        assert group.share * pool.cached_most == pytest.approx(group.peak_blocks)
    assert pool.used_most == capture.steps["pool_usage"].max()
    assert 0 < pool.used_most <= 1
