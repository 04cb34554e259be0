"""Exponential backoff with jitter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from fairlead.core.hashing import HASH_MAX, hash64


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


def jitter_of(name: str) -> Callable[[], float]:
    """Return a function for `Backoff.random` that differs between names, and repeats itself in each simulation."""
    draws = count()
    return lambda: hash64(f"{name}/{next(draws)}") / (HASH_MAX + 1)
