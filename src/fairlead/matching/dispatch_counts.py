"""How many tasks of each fairness key a partition has dispatched, in bounded memory."""

from collections.abc import KeysView
from operator import itemgetter

from fairlead.core.fairness.weights import WEIGHT_DEFAULT

# So many keys are counted; then the half of them that had fewest is forgotten.
KEYS_COUNTED_MAX = 10_000


class DispatchCounts:
    """Counts by key, with the weight that the key had last."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}

    def add(self, key: str, weight: float) -> None:
        """A task of this key was dispatched."""
        counts = self._counts
        known = counts.get(key)
        counts[key] = (1, weight) if known is None else (known[0] + 1, weight)
        if len(counts) > KEYS_COUNTED_MAX:
            self._counts = dict(sorted(counts.items(), key=itemgetter(1), reverse=True)[: KEYS_COUNTED_MAX // 2])

    def keys(self) -> KeysView[str]:
        """The keys that are counted."""
        return self._counts.keys()

    def count(self, key: str) -> int:
        """How many tasks of a key were dispatched; 0 if it is not counted."""
        return self._counts.get(key, (0, WEIGHT_DEFAULT))[0]

    def weight(self, key: str) -> float:
        """The weight that a key had last."""
        return self._counts.get(key, (0, WEIGHT_DEFAULT))[1]
