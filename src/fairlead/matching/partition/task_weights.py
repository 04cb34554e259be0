"""The weights that tasks have in one partition."""

from fairlead.core.fairness import WeightOverrides, check_weight


class TaskWeights:
    """Applies the weight overrides of fairness keys."""

    __slots__ = ("overrides",)

    def __init__(self, overrides: WeightOverrides) -> None:
        self.overrides = overrides

    def of(self, key: str, weight: float) -> float:
        """Return the weight of a task: the override of its fairness key, else `weight`, which came with the task."""
        # The weight was checked by `check_task`; 0 means that the task has none.
        if self.overrides and (override := self.overrides.get(key)):
            return override
        return weight if weight >= 1.0 else check_weight(weight)
