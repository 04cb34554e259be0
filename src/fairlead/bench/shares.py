"""Dispatches of each fairness key, compared with its fair share by weight while it had tasks waiting."""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.fairness.measures import jain_index

# Minimum number of dispatches that a key must be owed to count: a key that is owed less gets all or nothing by chance.
OWED_MIN = 10.0


class Share(NamedTuple):
    """Dispatches that a key got and was owed, and dispatches it got while all keys had tasks waiting."""

    got: int
    owed: float
    contended: int


class FairShares:
    """Measures fairness against an ideal server, which divides each dispatch by weight among the waiting keys.

    A key without waiting tasks is owed nothing, so a key that has few tasks is not counted as unfairly treated. Each
    dispatch advances a virtual time by 1 / (sum of the weights of all waiting keys); a key is owed its weight times the
    virtual time during which it waited. So the time of a step does not depend on the number of keys.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self._waiting = [0] * len(weights)
        self._entered = [0.0] * len(weights)
        self._owed = [0.0] * len(weights)
        self._got = [0] * len(weights)
        self._contended = [0] * len(weights)
        self._keys_waiting = 0
        self._weight_waiting = 0.0
        self._time = 0.0

    def waits(self, key: int) -> None:
        """Record that a task of this key begins to wait."""
        self._waiting[key] += 1
        if self._waiting[key] == 1:
            self._entered[key] = self._time
            self._keys_waiting += 1
            self._weight_waiting += self._weights[key]

    def withdrawn(self, key: int) -> None:
        """Record that a task of this key stopped waiting without being dispatched."""
        self._waiting[key] -= 1
        if self._waiting[key] == 0:
            self._owed[key] += self._weights[key] * (self._time - self._entered[key])
            self._keys_waiting -= 1
            # Set it to exactly 0 if no key waits, so that rounding errors do not outlive a busy period.
            self._weight_waiting = self._weight_waiting - self._weights[key] if self._keys_waiting else 0.0

    def dispatched(self, key: int) -> None:
        """Record that a waiting task of this key was dispatched."""
        self._time += 1 / self._weight_waiting
        self._got[key] += 1
        self._contended[key] += self._keys_waiting == len(self._weights)
        self.withdrawn(key)

    def share(self, key: int) -> Share:
        """Return the dispatches that the key got and was owed so far."""
        waiting = self._weights[key] * (self._time - self._entered[key]) if self._waiting[key] else 0.0
        return Share(self._got[key], self._owed[key] + waiting, self._contended[key])

    def jain_index(self) -> float | None:
        """Return the Jain index of the keys' ratios of got to owed; None with fewer than two keys to compare."""
        shares = [self.share(key) for key in range(len(self._weights))]
        ratios = [share.got / share.owed for share in shares if share.owed >= OWED_MIN]
        return jain_index(ratios) if len(ratios) > 1 else None
