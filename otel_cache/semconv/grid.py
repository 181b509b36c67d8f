"""The grid of positions that all replicas name in common, whatever their blocks."""


def common_grid(after: int, upto: int) -> list[int]:
    """Return the positions in (after, upto] of the common grid: 64, 128, then every 256 tokens."""
    head = [position for position in (64, 128) if after < position <= upto]
    first = max(256, (after // 256 + 1) * 256)
    return head + list(range(first, upto + 1, 256))
