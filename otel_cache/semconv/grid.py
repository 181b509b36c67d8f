"""The grid of positions that all replicas name in common, whatever their blocks."""


def common_grid(after: int, upto: int) -> list[int]:
    """Return the positions in (after, upto] of the common grid: 64, 128, then every 256 tokens."""
    rest = range((after // 256 + 1) * 256, upto + 1, 256)
    return list(rest) if after >= 128 else [*(each for each in (64, 128) if after < each <= upto), *rest]
