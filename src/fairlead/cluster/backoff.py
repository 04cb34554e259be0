"""How long to wait before the next try."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Each wait is twice the one before, up to a bound, and shortened by chance to half of it at most.

    The chance keeps those who failed together from coming back together.
    """

    first_s: float = 0.02
    max_s: float = 1.0
    random: Callable[[], float] = field(kw_only=True)
    _full_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reset()

    def next_s(self) -> float:
        """How long to wait now."""
        full_s = self._full_s
        self._full_s = min(2 * full_s, self.max_s)
        return full_s * (0.5 + 0.5 * self.random())

    def reset(self) -> None:
        """A try has succeeded: begin again with the shortest wait."""
        self._full_s = min(self.first_s, self.max_s)
