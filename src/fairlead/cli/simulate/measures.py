"""What several simulations measure."""

from collections.abc import Sequence


def jain_index(shares: Sequence[float]) -> float:
    """How even the shares are: 1 when all are the same, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
