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
    """A fairness key is longer than a store's row should carry."""


class InvalidWeight(FixRequest):
    """A weight is no positive number."""


class TooManyOverrides(FixRequest):
    """A task list has been given more weight overrides than it may have."""


def check_key(key: str) -> str:
    """Return `key` if a task may carry it; raise `InvalidFairnessKey` if not. The empty key is the default key."""
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as wrong:
        raise InvalidFairnessKey(f"fairness key {key!r} is no text that can be stored: {wrong.reason}") from wrong
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidFairnessKey(f"fairness key has {size_bytes} bytes, more than {KEY_BYTES_MAX}: shorten it")
    return key


def check_weight(weight: float) -> float:
    """Return the weight to count with: 0 means unset, the smallest is 0.001; raise `InvalidWeight` if it is none."""
    if not math.isfinite(weight) or weight < 0:
        raise InvalidWeight(
            f"fairness weight {weight}: give a positive number, or 0 for the default of {WEIGHT_DEFAULT:g}"
        )
    return max(weight, WEIGHT_MIN) if weight else WEIGHT_DEFAULT


def stride_of(weight: float) -> int:
    """How many passes lie between two tasks of a key: a key of twice the weight steps half as far.

    In whole passes, so that weights are exact to 1 % up to 20, and all from 667 on count alike.
    """
    return max(1, round(STRIDE_OF_WEIGHT_ONE / check_weight(weight)))


class WeightOverrides(Mapping[str, float]):
    """Weights that an operator has set for some keys of a task list; they come before the tasks' own.

    They count for what is written from now on: a level, once stored, stays.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        weights = weights or {}
        if len(weights) > OVERRIDES_MAX:
            raise TooManyOverrides(f"{len(weights)} fairness weight overrides, more than {OVERRIDES_MAX} a task list")
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
        """The stride of a task that carries `key` and `task_weight`."""
        return self._strides.get(key) or stride_of(task_weight)
