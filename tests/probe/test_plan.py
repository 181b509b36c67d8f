"""How long prompts are."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.probe.plan import BLOCKS, GRID_TOKENS, LEAST_TOKENS, grid_is_sure, grid_lengths, grid_of, sizes
from otel_cache.errors import UsageError


@pytest.mark.parametrize(
    ("grid", "limit", "tokens", "boundary"),
    [
        # Four blocks and 11/16 of one.
        (640, 8176, 4 * 640 + 440, 2560),
        (1600, None, 4 * 1600 + 1100, 6400),
        # 2,048 tokens are 128 blocks of 16.
        (16, 8176, 2048 + 11, 2048),
        # Only two blocks of 1,600 and a bit fit.
        (1600, 4400, 2 * 1600 + 1100, 3200),
    ],
)
def test_default_lengths(grid: int, limit: int | None, tokens: int, boundary: int) -> None:
    """By the size of the blocks and the model's limit."""
    found = sizes(grid, "spans", None, limit)
    assert (found.prompt_tokens, found.boundary) == (tokens, boundary)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(10, 40_000))
def test_prompts_fit(grid: int, limit: int) -> None:
    """A prompt and its longer sibling fit into the model and pass a boundary; or it says that none can."""
    try:
        found = sizes(grid, "spans", None, limit)
    except UsageError as error:
        assert "nothing that fits can be cached" in str(error)
        assert limit < 2 * grid + 3
        return
    assert found.prompt_tokens + 1 <= limit
    assert found.boundary % grid == 0
    assert grid <= found.boundary < found.prompt_tokens
    assert limit < max(BLOCKS * grid, LEAST_TOKENS) + 2 * grid + 3 or found.boundary >= max(BLOCKS * grid, LEAST_TOKENS)


@pytest.mark.parametrize(
    ("grid", "wanted", "says"),
    [
        (640, 9000, "--prompt-tokens 9,000: the model takes 8,176 tokens at most"),
        (640, 500, "--prompt-tokens 500: below one block of 640 tokens nothing is cached"),
    ],
)
def test_lengths_that_cannot_be(grid: int, wanted: int, says: str) -> None:
    """What was asked for is beyond the model, or below a block."""
    with pytest.raises(UsageError, match=re.escape(says)):
        sizes(grid, "flag", wanted, 8176)


def test_the_grid_of_hits() -> None:
    """Hits on blocks of 640; one after a drop; none."""
    assert grid_of([0, 0, 3840, 0, 0, 2560, 0, 1920, 1920]) == 640
    assert grid_of([0, 2992, None, 2192]) == 16
    assert grid_of([0, None]) is None


@pytest.mark.parametrize("dropped", [0, 1])
def test_the_lengths_show_the_grid(dropped: int) -> None:
    """Any grid of whole 16s that they are long enough for, with and without a block that speculation takes off."""
    for grid in range(16, GRID_TOKENS[0][0] // 3, 16):
        hits = [(length - 1) // grid * grid - dropped * grid for length in GRID_TOKENS[0]]
        assert grid_of(hits) == grid
        assert grid_is_sure(grid, GRID_TOKENS[0])
    assert not grid_is_sure(1600, GRID_TOKENS[0])
    assert not grid_is_sure(None, GRID_TOKENS[0])


def test_the_lengths_fit() -> None:
    """Into whatever the model takes."""
    assert grid_lengths(None) == list(GRID_TOKENS)
    assert grid_lengths(4000) == [GRID_TOKENS[0]]
    assert grid_lengths(1200) == [[1140, 778]]
    assert grid_lengths(500) == [[]]
