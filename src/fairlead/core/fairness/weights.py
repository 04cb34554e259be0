"""Weights of fairness keys, and the stride that follows from a weight."""

import math
from collections.abc import Iterator, Mapping

from fairlead.core.errors import FixRequest

WEIGHT_DEFAULT = 1.0
WEIGHT_MIN = 0.001
STRIDE_OF_WEIGHT_ONE = 1000
KEY_BYTES_MAX = 64
OVERRIDES_MAX = 1000


class InvalidFairnessKey(FixRequest):
    """A fairness key is too long or can't be encoded."""


class InvalidWeight(FixRequest):
    """A weight is negative, infinite or not a number."""


class TooManyOverrides(FixRequest):
    """A task queue would have more than `OVERRIDES_MAX` weight overrides."""


def check_key(key: str) -> str:
    """Return `key` if it is valid; raise `InvalidFairnessKey` if not. The empty key is the default key."""
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as wrong:
        raise InvalidFairnessKey(f"fairness key {key!r} can't be stored as text: {wrong.reason}") from wrong
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidFairnessKey(f"fairness key has {size_bytes} bytes, more than {KEY_BYTES_MAX}: shorten it")
    return key


def check_weight(weight: float) -> float:
    """Return the weight in use: the default for 0, and at least 0.001; raise `InvalidWeight` if it is invalid."""
    if not math.isfinite(weight) or weight < 0:
        raise InvalidWeight(
            f"fairness weight {weight}: give a positive number, or 0 for the default of {WEIGHT_DEFAULT:g}"
        )
    return max(weight, WEIGHT_MIN) if weight else WEIGHT_DEFAULT


def stride_of(weight: float) -> int:
    """Return the number of passes between two tasks of a key: a key of twice the weight has half the stride.

    Strides are whole numbers, so weights up to 20 are exact to 1 %, and all weights from 667 on have the same stride.
    """
    return max(1, round(STRIDE_OF_WEIGHT_ONE / check_weight(weight)))


class WeightOverrides(Mapping[str, float]):
    """Weights that an operator has set for some fairness keys of a task queue; they override the tasks' weights.

    They apply to tasks that are written from now on: stored levels stay.
    """

    __slots__ = ("_strides", "_weights")

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        weights = weights or {}
        if len(weights) > OVERRIDES_MAX:
            raise TooManyOverrides(
                f"{len(weights)} fairness weight overrides, more than {OVERRIDES_MAX} for one task queue"
            )
        for key, weight in weights.items():
            check_key(key)
            if weight == 0:
                raise InvalidWeight(f"fairness weight override of {key!r} is 0: leave it out to unset it")
        self._weights = {key: check_weight(weight) for key, weight in weights.items()}
        self._strides = {key: stride_of(weight) for key, weight in self._weights.items()}

    def __getitem__(self, key: str) -> float:
        return self._weights[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def stride_of(self, key: str, task_weight: float) -> int:
        """Return the stride of a task with `key` and `task_weight`."""
        return self._strides.get(key) or stride_of(task_weight)
