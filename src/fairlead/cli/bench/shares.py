"""What each fairness key got of the dispatches, against what its weight deserved while it had tasks waiting."""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.cli.simulate.measures import jain_index

# A key that was owed fewer than this says nothing: of one task, it gets either all or nothing.
OWED_MIN = 10.0


class Share(NamedTuple):
    """Dispatches that a key got, and those that it was owed; and what it got while all keys had tasks waiting."""

    got: int
    owed: float
    contended: int


class FairShares:
    """Measures fairness against the ideal server, which divides each dispatch among the keys that wait, by weight.

    A key that has nothing waiting is owed nothing, so that one which asks for little is not taken for badly treated.
    The time of the ideal server passes by 1 / (weight of all keys that wait) with each dispatch; a key is owed its
    weight times the time that it waited through, which makes each step constant work, however many keys there are.
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
        """A task of this key waits from now on."""
        self._waiting[key] += 1
        if self._waiting[key] == 1:
            self._entered[key] = self._time
            self._keys_waiting += 1
            self._weight_waiting += self._weights[key]

    def withdrawn(self, key: int) -> None:
        """A task of this key waits no longer, though it was not dispatched."""
        self._waiting[key] -= 1
        if self._waiting[key] == 0:
            self._owed[key] += self._weights[key] * (self._time - self._entered[key])
            self._keys_waiting -= 1
            # Exactly nothing where nobody waits, so that no rounding error lives longer than a busy time.
            self._weight_waiting = self._weight_waiting - self._weights[key] if self._keys_waiting else 0.0

    def dispatched(self, key: int) -> None:
        """A task of this key, which waited, was dispatched."""
        self._time += 1 / self._weight_waiting
        self._got[key] += 1
        self._contended[key] += self._keys_waiting == len(self._weights)
        self.withdrawn(key)

    def share(self, key: int) -> Share:
        """What the key got and was owed until now."""
        waiting = self._weights[key] * (self._time - self._entered[key]) if self._waiting[key] else 0.0
        return Share(self._got[key], self._owed[key] + waiting, self._contended[key])

    def jain_index(self) -> float | None:
        """How even the keys' shares are over what they were owed; None if there are not two keys to compare."""
        shares = [self.share(key) for key in range(len(self._weights))]
        ratios = [share.got / share.owed for share in shares if share.owed >= OWED_MIN]
        return jain_index(ratios) if len(ratios) > 1 else None
