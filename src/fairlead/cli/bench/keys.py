"""The fairness keys of a load: how many, which weights, and how much each of them asks for."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

KEYS_MAX = 100_000
WEIGHTS_MAX = 1_000
# One key more than a million times as heavy as another tells nothing, and the figures would not add up any more.
WEIGHT_MIN = 0.001
WEIGHT_MAX = 1_000.0


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """`count` keys with `weights` in turn. They ask in turn, or as Zipf has it: key *k* as often as 1 / k ** `zipf`."""

    count: int = 1
    weights: tuple[float, ...] = (1.0,)
    zipf: float | None = None

    def name(self, index: int) -> str:
        """The key's own name; a single key is the empty one, as of tasks that have none."""
        return f"key-{index:05}" if self.count > 1 else ""

    def weight(self, index: int) -> float:
        """The weight of this key."""
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
        """The index of the key that task `number` has; to be asked once a task."""
        if self._steps is None:
            return number % self._count
        return min(self._count - 1, bisect_right(self._steps, self._random() * self._steps[-1]))
