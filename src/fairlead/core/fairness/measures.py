"""Measures of fairness."""

from collections.abc import Sequence


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's fairness index of the shares: 1 if all are equal, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
