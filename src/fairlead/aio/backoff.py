"""Exponential backoff with jitter."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Doubles the wait each time, up to a bound, and shortens it by a random amount, at most to half.

    The jitter keeps clients that failed together from retrying together.
    """

    first_s: float = 0.02
    max_s: float = 1.0
    random: Callable[[], float] = field(kw_only=True)
    _full_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reset()

    def next_s(self) -> float:
        """Return the seconds to wait before the next attempt."""
        full_s = self._full_s
        self._full_s = min(2 * full_s, self.max_s)
        return full_s * (0.5 + 0.5 * self.random())

    def reset(self) -> None:
        """Begin again with the shortest wait, after a success."""
        self._full_s = min(self.first_s, self.max_s)
