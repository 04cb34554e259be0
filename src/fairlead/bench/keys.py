"""The fairness keys of a load: their number, weights and shares of the tasks."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

KEYS_MAX = 100_000
WEIGHTS_MAX = 1_000
# Bounds of a key's weight: a ratio beyond a million shows nothing, and the sums would lose precision.
WEIGHT_MIN = 0.001
WEIGHT_MAX = 1_000.0


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """`count` keys with cyclic `weights`. Tasks use the keys in turn, or with frequency 1 / k ** `zipf` for key *k*."""

    count: int = 1
    weights: tuple[float, ...] = (1.0,)
    zipf: float | None = None

    def name(self, index: int) -> str:
        """Return the key's name; with a single key it is empty, like the key of tasks without one."""
        return f"key-{index:05}" if self.count > 1 else ""

    def weight(self, index: int) -> float:
        """Return the weight of this key."""
        return self.weights[index % len(self.weights)]


class KeyChooser:
    """Chooses the key of each task."""

    def __init__(self, plan: KeyPlan, random: Callable[[], float]) -> None:
        self._count = plan.count
        self._random = random
        self._steps = (
            None if plan.zipf is None else list(accumulate((index + 1) ** -plan.zipf for index in range(plan.count)))
        )

    def key_of(self, number: int) -> int:
        """Return the index of the key of task `number`; call it once per task."""
        if self._steps is None:
            return number % self._count
        return min(self._count - 1, bisect_right(self._steps, self._random() * self._steps[-1]))
