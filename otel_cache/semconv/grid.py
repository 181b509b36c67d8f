"""The grid of positions that all replicas name in common, whatever their blocks.

Nothing is before 0: what begins there or earlier has the same grid.
"""


def common_grid(after: int, upto: int) -> list[int]:
    """Return the positions in (after, upto] of the common grid: 64, 128, then every 256 tokens."""
    rest = range(max(256, (after // 256 + 1) * 256), upto + 1, 256)
    return list(rest) if after >= 128 else [*(each for each in (64, 128) if after < each <= upto), *rest]


def common_mark(after: int, place: int) -> int:
    """Return the position at `place` of `common_grid(after, ...)`, which has one there."""
    after = max(after, 0)
    early = (after < 64) + (after < 128)
    return (64, 128)[place - early] if place < early else (after // 256 + 1 + place - early) * 256


def common_count(after: int, upto: int) -> int:
    """Return how many positions `common_grid(after, upto)` has."""
    after = max(after, 0)
    return (after < 64 <= upto) + (after < 128 <= upto) + max(0, upto // 256 - after // 256)
